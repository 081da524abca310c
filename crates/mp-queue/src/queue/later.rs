//! Putting and getting as futures, for queues and their halves.

use std::sync::atomic::Ordering;

use serde::Serialize;
use serde::de::DeserializeOwned;
use shm_core::message::Incoming;

use super::{Queue, Receiver, Sender};
use crate::error::{PutError, Result};

impl<T: Serialize + DeserializeOwned> Sender<T> {
    /// [`put`](Self::put) as a future, which knows no runtime and takes no thread.
    ///
    /// Cancel safe in this sense: dropped before it is ready, it has put nothing, and the value is dropped with it; it is
    /// never in the queue then. To keep a value that finds no room, use [`try_put`](Self::try_put), which gives it back.
    ///
    /// # Errors
    /// As [`put`](Self::put), without `Deadlock`: a task that waits does not hold up its thread, so nobody knows whether
    /// another one will end the wait. Use the runtime's timeout where that may be.
    pub async fn put_async(&self, value: T) -> Result<(), PutError<T>> {
        self.channel
            .put_async(value, |message| self.end.try_put(message))
            .await
    }
}

impl<T: Serialize + DeserializeOwned> Receiver<T> {
    /// [`get`](Self::get) as a future, which knows no runtime and takes no thread.
    ///
    /// Cancel safe: a message is taken in the very poll that answers with it, so dropping the future before that loses
    /// none. Who is woken first gets the first message; several futures of one process take turns in the order in which
    /// they began to wait.
    ///
    /// ```
    /// # fn block_on<F: std::future::Future>(f: F) -> F::Output {
    /// #     struct Unpark(std::thread::Thread);
    /// #     impl std::task::Wake for Unpark { fn wake(self: std::sync::Arc<Self>) { self.0.unpark() } }
    /// #     let waker = std::sync::Arc::new(Unpark(std::thread::current())).into();
    /// #     let mut f = std::pin::pin!(f);
    /// #     loop {
    /// #         match f.as_mut().poll(&mut std::task::Context::from_waker(&waker)) {
    /// #             std::task::Poll::Ready(output) => return output,
    /// #             std::task::Poll::Pending => std::thread::park(),
    /// #         }
    /// #     }
    /// # }
    /// let (sender, receiver) = mp_queue::Queue::bounded(1)?.split();
    /// let got = block_on(async {
    ///     sender.put_async("hello".to_string()).await?;
    ///     receiver.get_async().await
    /// })?;
    /// assert_eq!(got, "hello");
    /// # Ok::<(), mp_queue::Error>(())
    /// ```
    ///
    /// # Errors
    /// As [`get`](Self::get), without `Deadlock` (see [`Sender::put_async`]).
    pub async fn get_async(&self) -> Result<T> {
        let mut message = Incoming::default();
        self.take_async(&mut message).await?;
        Ok(message.take()?)
    }

    /// A message as it came, not decoded.
    pub(crate) async fn take_async(&self, message: &mut Incoming) -> Result<()> {
        let get = || {
            let mut seen = self.seen_orphans.load(Ordering::Relaxed);
            let found = self.end.try_get_into(&mut seen, message);
            self.seen_orphans.store(seen, Ordering::Relaxed);
            Ok(found?.into())
        };
        self.channel.get_async(get).await
    }
}

impl<T: Serialize + DeserializeOwned> Queue<T> {
    /// As [`Sender::put_async`].
    ///
    /// # Errors
    /// As there.
    pub async fn put_async(&self, value: T) -> Result<(), PutError<T>> {
        self.sender.put_async(value).await
    }

    /// As [`Receiver::get_async`].
    ///
    /// # Errors
    /// As there.
    pub async fn get_async(&self) -> Result<T> {
        self.receiver.get_async().await
    }
}
