//! [`Group`]: processes with different functions that live and fail together.

use std::fmt;
use std::ops::Range;
use std::time::Duration;

use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::context::{Inbox, SpawnContext};
use crate::desk;
use crate::entry;
use crate::error::{BoxError, Error, ErrorKind, Result};
use crate::hello::INLINE;
use crate::image::image;
use crate::launch::{Arguments, Plan};
use crate::link::{self, Mailbox, PROCESSES_MAX, Parcel, Shared};
use crate::method::StartMethod;
use crate::outcome::Outcome;
use crate::process::Process;
use crate::run::Options;
use crate::setup::Setup;
use crate::testing;
use crate::trampoline::{self, Target};

/// A member that has been added: its arguments are packed, its process is not started.
struct Added<R> {
    process: Process,
    name: String,
    target: Target,
    parcel: Parcel,
    inbox: Inbox<R>,
}

/// Processes with different functions that live and fail together: the first failure of any stops all.
///
/// The rank of a process is its place in the group. All functions give the same type `R`, or are added with
/// [`add_mapped`](Group::add_mapped) and a conversion into it.
///
/// ```no_run
/// use spawn::{Group, Process, Stdin};
///
/// fn read(_rank: usize, _: ()) -> Result<u64, std::io::Error> {
///     Ok(std::io::stdin().lines().count() as u64)
/// }
///
/// fn count(_rank: usize, to: u64) -> Result<u64, std::io::Error> {
///     Ok((0..to).sum())
/// }
///
/// fn main() -> spawn::Result<()> {
///     spawn::init();
///     let mut group = Group::new();
///     group.add(Process::named("read").stdin(Stdin::Inherit), read, ())?;
///     group.add_replicas("count", count, 100, 2)?;
///     let mut context = group.start()?;
///     println!("{:?}", context.join()?);
///     Ok(())
/// }
/// ```
#[must_use = "a group does nothing until it is started"]
pub struct Group<R> {
    members: Vec<Added<R>>,
    options: Options,
}

impl<R: 'static> Group<R> {
    /// An empty group.
    pub fn new() -> Group<R> {
        Group::with(Options::default())
    }

    pub(crate) fn with(options: Options) -> Group<R> {
        Group {
            members: Vec::new(),
            options,
        }
    }

    /// See [`Builder::grace`](crate::Builder::grace).
    pub fn grace(mut self, grace: Duration) -> Self {
        self.options.grace = grace;
        self
    }

    /// See [`Builder::hello_deadline`](crate::Builder::hello_deadline).
    pub fn hello_deadline(mut self, deadline: Duration) -> Self {
        self.options.hello_deadline = deadline;
        self
    }

    /// See [`Builder::start_method`](crate::Builder::start_method).
    pub fn start_method(mut self, method: StartMethod) -> Self {
        self.options.method = method;
        self
    }

    /// Keeps a failure among the processes of this group and whoever joins them: queues and events that they were handed
    /// go on for others, as if the process had only let go of them. For processes that are replaced when they fail.
    ///
    /// So who receives gets `Closed` when the last sender was killed, also at a pair, as at an orderly end: only
    /// [`join`](crate::SpawnContext::join) tells the two apart. Who sends, and has no receiver left, gets an error in any case.
    pub fn apart(mut self) -> Self {
        self.options.apart = true;
        self
    }

    /// Adds a process that will run `f(rank, args)`, and gives its rank. The arguments are encoded now: what is moved
    /// into them has left this process's hands.
    ///
    /// # Errors
    ///
    /// When [`init`](crate::init) was not called, or the arguments cannot be encoded.
    pub fn add<F, A, O>(&mut self, process: impl Into<Process>, f: F, args: A) -> Result<usize>
    where
        F: Fn(usize, A) -> O + Copy + Send + 'static,
        A: Serialize + DeserializeOwned,
        O: Outcome<Value = R>,
    {
        self.add_mapped(process, f, args, |value| value)
    }

    /// Adds a process whose result becomes an `R` in this process, when the group is joined.
    ///
    /// # Errors
    ///
    /// As for [`add`](Group::add).
    pub fn add_mapped<F, A, O>(
        &mut self,
        process: impl Into<Process>,
        f: F,
        args: A,
        into: impl Fn(O::Value) -> R + Send + Sync + 'static,
    ) -> Result<usize>
    where
        F: Fn(usize, A) -> O + Copy + Send + 'static,
        A: Serialize + DeserializeOwned,
        O: Outcome,
    {
        let _ = f;
        let process = process.into();
        let target = prepare::<F, A, O>(&process)?;
        let name = process.name_of(&target, 0, 1);
        self.push::<O>(process, name, target, pack(args)?, into)
    }

    /// Adds `n` processes that will run `f(rank, args)`, each with its own copy of the arguments, and gives their
    /// ranks.
    ///
    /// # Errors
    ///
    /// As for [`add`](Group::add); also when `n` is 0, and when the arguments hold something that only one process may
    /// have and `n > 1`.
    pub fn add_replicas<F, A, O>(
        &mut self,
        process: impl Into<Process>,
        f: F,
        args: A,
        n: usize,
    ) -> Result<Range<usize>>
    where
        F: Fn(usize, A) -> O + Copy + Send + 'static,
        A: Serialize + DeserializeOwned,
        O: Outcome<Value = R>,
    {
        let _ = f;
        let process = process.into();
        let target = prepare::<F, A, O>(&process)?;
        if n == 0 {
            return Err(Error::new(
                ErrorKind::Usage,
                "0 processes were asked for: nobody would take the arguments, so ask for at least 1",
            ));
        }
        if n > PROCESSES_MAX {
            return Err(Error::new(
                ErrorKind::Usage,
                format!(
                    "{n} processes were asked for; an arena has room for {PROCESSES_MAX} beside this one"
                ),
            ));
        }
        let first = self.members.len();
        let parcel = pack(args)?;
        for index in 1..n {
            let copy = parcel.duplicate().map_err(|error| {
                Error::caused(
                    ErrorKind::Arguments,
                    format!(
                        "{n} processes cannot have copies of these arguments (freeze what is exclusive in them, or use \
                         one process)"
                    ),
                    error,
                )
            })?;
            let name = process.name_of(&target, index, n);
            self.push::<O>(process.clone(), name, target, copy, |value| value)?;
        }
        // The original goes to the first replica, which must also come first.
        let name = process.name_of(&target, 0, n);
        self.push::<O>(process, name, target, parcel, |value| value)?;
        self.members[first..].rotate_right(1);
        Ok(first..first + n)
    }

    fn push<O: Outcome>(
        &mut self,
        process: Process,
        name: String,
        target: Target,
        parcel: Parcel,
        into: impl Fn(O::Value) -> R + Send + Sync + 'static,
    ) -> Result<usize> {
        let inbox = Inbox::new(Mailbox::create().map_err(no_letterbox)?, into);
        self.members.push(Added {
            process,
            name,
            target,
            parcel,
            inbox,
        });
        Ok(self.members.len() - 1)
    }

    /// Starts the processes. From here on they are supervised.
    ///
    /// # Errors
    ///
    /// When the group is empty, more than one process is to have this one's stdin, processes are nested too deep, or
    /// the system does not start one; then none is left running.
    pub fn start(self) -> Result<SpawnContext<R>> {
        let all_foreign = self
            .members
            .iter()
            .all(|member| member.process.executable.is_some());
        let depth = entry::depth_of_a_child(all_foreign)?;
        if self.members.is_empty() {
            return Err(Error::new(
                ErrorKind::Usage,
                "the group is empty: add a process before it is started",
            ));
        }
        if self.members.iter().all(|member| member.process.daemon) {
            return Err(Error::new(
                ErrorKind::Usage,
                "all processes of the group are daemons, which end when the others have: there are no others",
            ));
        }
        let readers: Vec<&str> = self
            .members
            .iter()
            .filter(|member| member.process.reads_our_stdin())
            .map(|member| member.name.as_str())
            .collect();
        if readers.len() > 1 {
            return Err(Error::new(
                ErrorKind::Usage,
                format!(
                    "stdin is to go to {} processes ({}), which would each get some part of it: give it to one",
                    readers.len(),
                    readers.join(", ")
                ),
            ));
        }
        let mut plans = Vec::new();
        let mut inboxes = Vec::new();
        let mut tails = Vec::new();
        let mut shared: Vec<Shared> = Vec::new();
        for (rank, member) in self.members.into_iter().enumerate() {
            let Added {
                process,
                name,
                target,
                parcel,
                inbox,
            } = member;
            if !self.options.apart {
                shared.extend(parcel.shared());
            }
            let outcome = inbox.handle();
            let arguments = match parcel.plain(INLINE) {
                Some(bytes) => Arguments::Plain(bytes),
                None => {
                    let mailbox = Mailbox::create().map_err(no_letterbox)?;
                    mailbox.post(parcel).map_err(no_letterbox)?;
                    Arguments::Mailbox(mailbox)
                }
            };
            inboxes.push((inbox, process.daemon));
            let stdin = process.own_stdin()?;
            let setup =
                Setup::new(process, target.name, &testing::arguments()).map_err(|error| {
                    let what = format!("what process {rank} (\"{name}\") gets could not be opened");
                    Error::caused(ErrorKind::Launch, what, error)
                })?;
            tails.extend(setup.tail.clone());
            plans.push(Plan {
                target,
                name,
                rank,
                // Given by the supervisor.
                context: 0,
                depth,
                arguments,
                outcome,
                stdin,
                setup,
            });
        }
        let story = desk::start(plans, shared, self.options)?;
        Ok(SpawnContext::new(story, inboxes, tails))
    }
}

impl<R: 'static> Default for Group<R> {
    fn default() -> Self {
        Group::new()
    }
}

impl<R> fmt::Debug for Group<R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list()
            .entries(
                self.members
                    .iter()
                    .map(|member| (&member.name, member.target.name)),
            )
            .finish()
    }
}

/// What must hold before anything is encoded, and where the function is.
fn prepare<F, A, R>(process: &Process) -> Result<Target>
where
    F: Fn(usize, A) -> R + Copy + Send + 'static,
    A: Serialize + DeserializeOwned,
    R: Outcome,
{
    let foreign = process.executable.is_some();
    entry::depth_of_a_child(foreign)?;
    let target = if foreign {
        trampoline::target_by_name::<F, A, R>()
    } else {
        let image = image().map_err(|reason| Error::new(ErrorKind::Launch, reason))?;
        trampoline::target::<F, A, R>(image)
            .map_err(|reason| Error::new(ErrorKind::Usage, reason))?
    };
    link::prepare().map_err(|error| {
        Error::caused(
            ErrorKind::Arena,
            "there is no arena to share with new processes",
            error,
        )
    })?;
    Ok(target)
}

fn pack<A: Serialize>(args: A) -> Result<Parcel> {
    Parcel::pack(args).map_err(|error| {
        let what = format!(
            "the arguments of type `{}` cannot be sent",
            std::any::type_name::<A>()
        );
        Error::caused(ErrorKind::Arguments, what, error)
    })
}

fn no_letterbox(error: BoxError) -> Error {
    Error::caused(
        ErrorKind::Arena,
        "no room in the arena for a process's letterbox",
        error,
    )
}
