//! Messages by the crate iceoryx2: memory is loaned, sent, received and given back, without a copy of it.

use bench_peers::{Ends, Head, Result, Setup, open, patiently, seal, serve};
use iceoryx2::port::listener::Listener;
use iceoryx2::port::notifier::Notifier;
use iceoryx2::port::publisher::Publisher;
use iceoryx2::port::subscriber::Subscriber;
use iceoryx2::prelude::*;
use iceoryx2::service::port_factory::event::PortFactory as EventFactory;
use iceoryx2::service::port_factory::publish_subscribe::PortFactory as SampleFactory;

type Ipc = ipc::Service;

struct Services {
    to: Publisher<Ipc, [u8], ()>,
    from: Subscriber<Ipc, [u8], ()>,
    /// Where the receiver sleeps: samples do not wake anybody, events do.
    wake: Option<(Notifier<Ipc>, Listener<Ipc>)>,
    bytes: usize,
    /// What must stay for the ports to work.
    _factories: (Vec<SampleFactory<Ipc, [u8], ()>>, Vec<EventFactory<Ipc>>),
    _node: Node<Ipc>,
}

impl Services {
    fn connect(setup: &Setup) -> Result<Self> {
        let mut config = Config::default();
        // Whatever is left of killed processes lies where it is found and removed.
        let folder = setup.folder.to_str().ok_or("the folder has an odd name")?;
        let prefix = setup.folder.file_name().ok_or("the folder has no name")?;
        config
            .global
            .set_root_path(&iceoryx2::prelude::Path::new(folder.as_bytes())?);
        config.global.prefix = FileName::new(prefix.as_encoded_bytes())?;
        let node = NodeBuilder::new()
            .config(&config)
            .signal_handling_mode(SignalHandlingMode::Disabled)
            .create::<Ipc>()?;
        let names = setup.names();
        let samples = |name: &str| -> Result<_> {
            let service = node
                .service_builder(&name.try_into()?)
                .publish_subscribe::<[u8]>()
                .max_publishers(1)
                .max_subscribers(1)
                .subscriber_max_buffer_size(2)
                .history_size(0)
                .subscriber_max_borrowed_samples(2);
            patiently(|| service.clone().open_or_create())
        };
        let (to, from) = (samples(names[0])?, samples(names[1])?);
        let publisher = to
            .publisher_builder()
            .initial_max_slice_len(setup.bytes)
            .create()?;
        let subscriber = from.subscriber_builder().create()?;
        let mut events = Vec::new();
        let mut wake = None;
        if setup.parked {
            for name in names {
                let name = name.try_into()?;
                events.push(patiently(|| {
                    node.service_builder(&name).event().open_or_create()
                })?);
            }
            wake = Some((
                events[0].notifier_builder().create()?,
                events[1].listener_builder().create()?,
            ));
            patiently(|| there(events[0].dynamic_config().number_of_listeners()))?;
        }
        patiently(|| there(to.dynamic_config().number_of_subscribers()))?;
        Ok(Self {
            to: publisher,
            from: subscriber,
            wake,
            bytes: setup.bytes,
            _factories: (vec![to, from], events),
            _node: node,
        })
    }
}

fn there(others: usize) -> std::result::Result<(), &'static str> {
    if others == 0 {
        return Err("the other side does not listen");
    }
    Ok(())
}

impl Ends for Services {
    fn put(&mut self, head: Head) -> Result<()> {
        let sample = self.to.loan_slice_uninit(self.bytes)?;
        // SAFETY: the memory is shared memory, whose pages are zeroes or what was sent before, and any byte is a u8.
        let mut sample = unsafe { sample.assume_init() };
        seal(sample.payload_mut(), head);
        sample.send()?;
        if let Some((notifier, _)) = &self.wake {
            notifier.notify()?;
        }
        Ok(())
    }

    fn get(&mut self) -> Result<Head> {
        loop {
            if let Some(sample) = self.from.receive()? {
                return open(sample.payload(), self.bytes);
            }
            match &self.wake {
                Some((_, listener)) => {
                    listener.blocking_wait(|_| {})?;
                }
                None => std::hint::spin_loop(),
            }
        }
    }
}

fn main() -> Result<()> {
    set_log_level(LogLevel::Error);
    serve(Services::connect)
}
