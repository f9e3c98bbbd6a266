//! A librdkafka client handle: made from properties, with callbacks into Rust, destroyed off the caller's thread.

use std::{
    collections::{HashSet, VecDeque},
    ffi::{CStr, CString, c_char, c_int, c_void},
    panic::{AssertUnwindSafe, catch_unwind},
    ptr::NonNull,
    sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError},
    thread,
    time::{Duration, Instant},
};

use rdkafka::config::ClientConfig;
use rdkafka::error::KafkaError as ConfigError;
use rdkafka::types::RDKafkaConfRes;
use rdkafka_sys as sys;

use crate::{
    error::{CallError, ClientError, CreateError, ErrorCode, KafkaError},
    ffi::{coded, text},
};

/// How many client errors wait for the caller. librdkafka repeats itself, so the oldest may go.
const MAX_WAITING_ERRORS: usize = 64;

/// How many spent vectors are kept for the next batches: one being filled, one in the handover, one being emitted.
const MAX_SPARE_VECTORS: usize = 4;

/// How long no broker's state changes before the client counts as one that knows no broker. While it knows one it tries to
/// connect at least each ten seconds. (An attempt that nobody answers takes thirty: naming the servers then changes nothing.)
const FORGOTTEN: Duration = Duration::from_secs(15);

/// The name of the interceptor that follows connections.
const CONNECTIONS: &CStr = c"handover-connections";

/// How loud a line of librdkafka's log is, folded from the eight levels of syslog.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum LogLevel {
    /// Emergency, alert, critical, error.
    Error,
    /// Warning.
    Warning,
    /// Notice, info.
    Info,
    /// Debug.
    Debug,
}

/// A line of librdkafka's log.
#[derive(Debug, Clone, Copy)]
pub struct LogLine<'a> {
    /// How loud it is.
    pub level: LogLevel,
    /// librdkafka's short name of the place it comes from, such as `FAIL`.
    pub facility: &'a str,
    /// The text, which names the client and broker.
    pub message: &'a str,
}

/// Where log lines go. Called on librdkafka's own threads, so it must neither block nor call the client.
pub type LogSink = Arc<dyn Fn(LogLine<'_>) + Send + Sync>;

/// What the callbacks of a client share with its handle. It outlives the native client, see [`Native::drop`].
pub(crate) struct Shared {
    log: LogSink,
    errors: Mutex<VecDeque<ClientError>>,
    last_error: Mutex<Option<ClientError>>,
    connections: Mutex<Connections>,
    /// When a broker's state last changed, or the brokers were named again.
    last_attempt: Mutex<Instant>,
    spare: Mutex<Vec<SpareVec>>,
    destroyed: Mutex<bool>,
    destroyed_changed: Condvar,
}

/// An empty vector, kept for its capacity.
struct SpareVec(Vec<*mut sys::rd_kafka_message_t>);

// SAFETY: it is empty whenever it is stored, so no pointer moves between threads.
unsafe impl Send for SpareVec {}

/// A lock whose holder cannot leave the data half-written; a panic of another holder changes nothing.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Shared {
    fn note_error(&self, error: ClientError) {
        *lock(&self.last_error) = Some(error.clone());
        let mut errors = lock(&self.errors);
        if errors.len() == MAX_WAITING_ERRORS {
            errors.pop_front();
        }
        errors.push_back(error);
    }

    pub(crate) fn take_vector(&self) -> Vec<*mut sys::rd_kafka_message_t> {
        lock(&self.spare)
            .pop()
            .map_or_else(Vec::new, |spare| spare.0)
    }

    /// Keeps an empty vector's memory for the next batch.
    pub(crate) fn give_vector(&self, vector: Vec<*mut sys::rd_kafka_message_t>) {
        debug_assert!(vector.is_empty());
        let mut spare = lock(&self.spare);
        if spare.len() < MAX_SPARE_VECTORS {
            spare.push(SpareVec(vector));
        }
    }

    /// Waits until the native client is gone; false at the deadline.
    pub(crate) fn wait_destroyed(&self, deadline: Duration) -> bool {
        let guard = lock(&self.destroyed);
        let (guard, _) = self
            .destroyed_changed
            .wait_timeout_while(guard, deadline, |destroyed| !*destroyed)
            .unwrap_or_else(PoisonError::into_inner);
        *guard
    }
}

/// Which brokers the client is connected to.
///
/// librdkafka's error for the loss of all brokers is not raised in every loss (it counts each broker's failures once, and
/// planned disconnections not at all), so the state of each broker is followed.
#[derive(Default)]
struct Connections(HashSet<(i32, String, i32)>);

impl Connections {
    /// Notes that a broker's connection is up, or no longer.
    fn note(&mut self, broker_id: i32, host: &str, port: i32, up: bool) {
        let key = |id: i32| (id, host.to_owned(), port);
        if up {
            self.0.insert(key(broker_id));
        } else {
            self.0.remove(&key(broker_id));
        }
        if broker_id >= 0 {
            // The entry from before the broker's id was known.
            self.0.remove(&key(-1));
        }
    }
}

impl Connections {
    /// The connected broker with the lowest id; entries from before an id was known do not count.
    fn lowest(&self) -> Option<i32> {
        self.0
            .iter()
            .map(|(id, _, _)| *id)
            .filter(|id| *id >= 0)
            .min()
    }
}

/// The group of clients that only ask. They never join it and commit nothing to it.
///
/// librdkafka (issue 5040) follows a null pointer when a broker answers a question for a group's offsets with "not
/// coordinator", as a new cluster does for its first seconds, unless the asking client is a consumer with a group of its own.
const GROUP_OF_ASKING_CLIENTS: &CStr = c"handover-questions";

/// What a client is for: decides where its errors are heard.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Purpose {
    /// Consumes; errors arrive while a batch is awaited.
    Consume,
    /// Asks questions; a background thread of librdkafka hears its errors.
    Ask,
}

/// A native client that nobody else owns.
pub(crate) struct Native {
    rk: NonNull<sys::rd_kafka_t>,
    /// The queue that records arrive in; only for [`Purpose::Consume`].
    consumer_queue: Option<NonNull<sys::rd_kafka_queue_t>>,
    bootstrap: Option<CString>,
    shared: Arc<Shared>,
}

// SAFETY: librdkafka's client and queue handles may be used from any thread, and from several at a time.
unsafe impl Send for Native {}
// SAFETY: as above.
unsafe impl Sync for Native {}

impl Native {
    pub(crate) fn create(
        config: &ClientConfig,
        purpose: Purpose,
        log: LogSink,
    ) -> Result<Self, CreateError> {
        let shared = Arc::new(Shared {
            log,
            errors: Mutex::default(),
            last_error: Mutex::default(),
            connections: Mutex::default(),
            last_attempt: Mutex::new(Instant::now()),
            spare: Mutex::default(),
            destroyed: Mutex::new(false),
            destroyed_changed: Condvar::new(),
        });
        let rk = new_client(config, purpose, &shared)?;
        let mut native = Self {
            rk,
            consumer_queue: None,
            bootstrap: config
                .get("bootstrap.servers")
                .and_then(|servers| CString::new(servers).ok()),
            shared,
        };
        match purpose {
            Purpose::Consume => native.route_to_consumer_queue()?,
            Purpose::Ask => native.route_to_background(),
        }
        Ok(native)
    }

    /// Makes client errors arrive in the queue that records arrive in.
    fn route_to_consumer_queue(&mut self) -> Result<(), CreateError> {
        // SAFETY: a live client.
        let code = ErrorCode(unsafe { coded::rd_kafka_poll_set_consumer(self.rk()) });
        code.check(|| None)
            .map_err(|error| CreateError::Client(format!("{error}; is `group.id` set?")))?;
        // SAFETY: a live client.
        self.consumer_queue = NonNull::new(unsafe { sys::rd_kafka_queue_get_consumer(self.rk()) });
        Ok(())
    }

    /// Makes client errors arrive at the background callback: nobody polls an asking client while it is idle.
    fn route_to_background(&self) {
        // SAFETY: a live client with a background callback has both queues; our references to them are given back.
        unsafe {
            let background = sys::rd_kafka_queue_get_background(self.rk());
            for queue in [
                sys::rd_kafka_queue_get_main(self.rk()),
                sys::rd_kafka_queue_get_consumer(self.rk()),
            ] {
                if !queue.is_null() {
                    sys::rd_kafka_queue_forward(queue, background);
                    sys::rd_kafka_queue_destroy(queue);
                }
            }
            sys::rd_kafka_queue_destroy(background);
        }
    }

    pub(crate) fn rk(&self) -> *mut sys::rd_kafka_t {
        self.rk.as_ptr()
    }

    pub(crate) fn consumer_queue(&self) -> Option<NonNull<sys::rd_kafka_queue_t>> {
        self.consumer_queue
    }

    pub(crate) fn shared(&self) -> &Arc<Shared> {
        &self.shared
    }

    /// Client errors since the last call, oldest first.
    pub(crate) fn take_errors(&self) -> Vec<ClientError> {
        lock(&self.shared.errors).drain(..).collect()
    }

    /// The newest client error since a broker was last connected.
    pub(crate) fn last_error(&self) -> Option<ClientError> {
        lock(&self.shared.last_error).clone()
    }

    /// How many brokers are connected and answer.
    pub(crate) fn connected_brokers(&self) -> usize {
        lock(&self.shared.connections).0.len()
    }

    /// Names the bootstrap servers again to a client that knows no broker any more.
    ///
    /// librdkafka (issue 5301) drops every broker when an answer names topics and no broker, which a cluster gives whose only
    /// broker was frozen for a while, and then connects to nobody ever again.
    pub(crate) fn recall_brokers(&self) {
        let Some(bootstrap) = self.bootstrap.as_ref() else {
            return;
        };
        let mut last_attempt = lock(&self.shared.last_attempt);
        if self.connected_brokers() > 0 || last_attempt.elapsed() < FORGOTTEN {
            return;
        }
        *last_attempt = Instant::now();
        drop(last_attempt);
        // SAFETY: a live client and a live string, which is copied. Servers that it knows are not added twice.
        unsafe { sys::rd_kafka_brokers_add(self.rk(), bootstrap.as_ptr()) };
    }

    /// A broker that is connected: always the same one while it is.
    pub(crate) fn lowest_connected_broker(&self) -> Option<i32> {
        lock(&self.shared.connections).lowest()
    }

    /// The error of a call that got no answer.
    pub(crate) fn deadline(&self, operation: &'static str, waited: Duration) -> CallError {
        self.recall_brokers();
        // While brokers are away librdkafka tries again, and fails again, at least each ten seconds.
        let recent = waited.saturating_add(Duration::from_secs(30));
        let last_error = self.last_error().filter(|last| last.at.elapsed() <= recent);
        CallError::Deadline {
            operation,
            waited,
            last_error,
        }
    }
}

impl Drop for Native {
    /// Hands the native client to a thread that destroys it: librdkafka waits there for its own threads and brokers.
    ///
    /// The thread owns what the callbacks use until the last of them has returned. If the machine gives no thread, the
    /// client is leaked: a leak in a process that cannot make threads is better than a blocked caller.
    fn drop(&mut self) {
        let doomed = Doomed {
            rk: self.rk,
            consumer_queue: self.consumer_queue,
            shared: Arc::clone(&self.shared),
        };
        let keep_alive = Arc::clone(&self.shared);
        let spawned = thread::Builder::new()
            .name("kafka-destroy".to_owned())
            .spawn(move || doomed.destroy());
        if spawned.is_err() {
            std::mem::forget(keep_alive);
        }
    }
}

/// A client on its way out.
struct Doomed {
    rk: NonNull<sys::rd_kafka_t>,
    consumer_queue: Option<NonNull<sys::rd_kafka_queue_t>>,
    shared: Arc<Shared>,
}

// SAFETY: as for `Native`.
unsafe impl Send for Doomed {}

impl Doomed {
    fn destroy(self) {
        if let Some(queue) = self.consumer_queue {
            // SAFETY: our reference, given back once; the client still lives.
            unsafe { sys::rd_kafka_queue_destroy(queue.as_ptr()) };
        }
        // SAFETY: the only owner, and no handle of it is left: batches and calls hold the client alive.
        unsafe { sys::rd_kafka_destroy(self.rk.as_ptr()) };
        *lock(&self.shared.destroyed) = true;
        self.shared.destroyed_changed.notify_all();
    }
}

fn new_client(
    config: &ClientConfig,
    purpose: Purpose,
    shared: &Arc<Shared>,
) -> Result<NonNull<sys::rd_kafka_t>, CreateError> {
    let native = config.create_native_config().map_err(property_error)?;
    // SAFETY: a live configuration; the copy is ours, as `rd_kafka_new` takes it over only when it succeeds.
    let conf = unsafe { sys::rd_kafka_conf_dup(native.ptr()) };
    set_callbacks(conf, config, purpose, shared);
    let kind = sys::rd_kafka_type_t::RD_KAFKA_CONSUMER;
    let mut reason: [c_char; 512] = [0; 512];
    // SAFETY: our configuration and a buffer with its size.
    let rk = unsafe { sys::rd_kafka_new(kind, conf, reason.as_mut_ptr(), reason.len()) };
    if let Some(rk) = NonNull::new(rk) {
        return Ok(rk);
    }
    // SAFETY: not taken over, see above.
    unsafe { sys::rd_kafka_conf_destroy(conf) };
    // SAFETY: librdkafka wrote a terminated string, or nothing into the zeroed buffer.
    let reason = unsafe { text(reason.as_ptr()) };
    Err(CreateError::Client(reason.unwrap_or_default()))
}

fn set_callbacks(
    conf: *mut sys::rd_kafka_conf_t,
    config: &ClientConfig,
    purpose: Purpose,
    shared: &Arc<Shared>,
) {
    // SAFETY: whole block: a live configuration. The callbacks get the address of `shared`, which outlives the client
    // (see `Native::drop`), and have the signatures that librdkafka calls.
    unsafe {
        sys::rd_kafka_conf_set_opaque(conf, Arc::as_ptr(shared).cast_mut().cast());
        sys::rd_kafka_conf_set_log_cb(conf, Some(on_log));
        let shared = Arc::as_ptr(shared).cast_mut().cast();
        coded::rd_kafka_conf_interceptor_add_on_new(
            conf,
            CONNECTIONS.as_ptr(),
            Some(on_new),
            shared,
        );
        match purpose {
            Purpose::Consume => sys::rd_kafka_conf_set_error_cb(conf, Some(on_error)),
            Purpose::Ask => {
                // A valid property and value; without a buffer no text is written.
                sys::rd_kafka_conf_set(
                    conf,
                    c"group.id".as_ptr(),
                    GROUP_OF_ASKING_CLIENTS.as_ptr(),
                    std::ptr::null_mut(),
                    0,
                );
                sys::rd_kafka_conf_set_events(conf, sys::RD_KAFKA_EVENT_ERROR);
                sys::rd_kafka_conf_set_background_event_cb(conf, Some(on_event));
            }
        }
    }
    if config.get("log_level").is_none() {
        set_log_level(conf, config);
    }
}

/// The level of the Rust wrapper's configuration, unless the property of that name is set.
fn set_log_level(conf: *mut sys::rd_kafka_conf_t, config: &ClientConfig) {
    let Ok(level) = CString::new((config.log_level as i32).to_string()) else {
        return;
    };
    // SAFETY: a live configuration and C strings; without a buffer no text is written. The value is always valid.
    unsafe {
        sys::rd_kafka_conf_set(
            conf,
            c"log_level".as_ptr(),
            level.as_ptr(),
            std::ptr::null_mut(),
            0,
        );
    }
}

/// Keeps the property's name and drops its value, which may be a password.
fn property_error(error: ConfigError) -> CreateError {
    match error {
        ConfigError::ClientConfig(RDKafkaConfRes::RD_KAFKA_CONF_UNKNOWN, _, property, _) => {
            CreateError::Property {
                property,
                reason: "no such property",
            }
        }
        ConfigError::ClientConfig(_, _, property, _) => CreateError::Property {
            property,
            reason: "invalid value",
        },
        other => CreateError::Client(other.to_string()),
    }
}

/// Finds what the callbacks share.
///
/// # Safety
/// `opaque` was set by [`set_callbacks`], and the client still lives.
unsafe fn shared_of<'a>(opaque: *mut c_void) -> &'a Shared {
    // SAFETY: the address of a `Shared` that outlives the client.
    unsafe { &*opaque.cast::<Shared>() }
}

unsafe extern "C" fn on_log(
    rk: *const sys::rd_kafka_t,
    level: c_int,
    facility: *const c_char,
    message: *const c_char,
) {
    // SAFETY: called by librdkafka with a live client.
    let shared = unsafe { shared_of(sys::rd_kafka_opaque(rk)) };
    // SAFETY: librdkafka's strings live during the call.
    let (facility, message) = unsafe { (text(facility), text(message)) };
    let level = match level {
        ..=3 => LogLevel::Error,
        4 => LogLevel::Warning,
        5 | 6 => LogLevel::Info,
        7.. => LogLevel::Debug,
    };
    let line = LogLine {
        level,
        facility: facility.as_deref().unwrap_or_default(),
        message: message.as_deref().unwrap_or_default(),
    };
    // A panic must not unwind into C; the panic hook has reported it by now.
    drop(catch_unwind(AssertUnwindSafe(|| (shared.log)(line))));
}

/// Asks for the state changes of a new client's brokers.
unsafe extern "C" fn on_new(
    rk: *mut sys::rd_kafka_t,
    _conf: *const sys::rd_kafka_conf_t,
    opaque: *mut c_void,
    _errstr: *mut c_char,
    _errstr_size: usize,
) -> c_int {
    // SAFETY: called by librdkafka with a new client; the name is copied, the opaque outlives the client.
    unsafe {
        coded::rd_kafka_interceptor_add_on_broker_state_change(
            rk,
            CONNECTIONS.as_ptr(),
            Some(on_broker_state),
            opaque,
        )
    }
}

/// Called on the broker's thread, with the broker locked: nothing of librdkafka may be called.
unsafe extern "C" fn on_broker_state(
    _rk: *mut sys::rd_kafka_t,
    broker_id: i32,
    _protocol: *const c_char,
    name: *const c_char,
    port: c_int,
    state: *const c_char,
    opaque: *mut c_void,
) -> c_int {
    // SAFETY: called by librdkafka with live strings and our opaque.
    let (shared, name, state) = unsafe { (shared_of(opaque), text(name), text(state)) };
    let up = state.as_deref() == Some("UP");
    *lock(&shared.last_attempt) = Instant::now();
    lock(&shared.connections).note(broker_id, name.as_deref().unwrap_or_default(), port, up);
    if up {
        // What was wrong before no longer explains a silence.
        *lock(&shared.last_error) = None;
    }
    0
}

unsafe extern "C" fn on_error(
    rk: *mut sys::rd_kafka_t,
    code: c_int,
    reason: *const c_char,
    opaque: *mut c_void,
) {
    // SAFETY: called by librdkafka with a live client, a live string and our opaque.
    unsafe { shared_of(opaque).note_error(client_error(rk, ErrorCode(code), text(reason))) };
}

unsafe extern "C" fn on_event(
    rk: *mut sys::rd_kafka_t,
    event: *mut sys::rd_kafka_event_t,
    opaque: *mut c_void,
) {
    // SAFETY: whole block: called by librdkafka with a live client, an event that is ours to destroy, and our opaque.
    unsafe {
        if sys::rd_kafka_event_type(event) == sys::RD_KAFKA_EVENT_ERROR {
            let code = ErrorCode(coded::rd_kafka_event_error(event));
            let reason = text(sys::rd_kafka_event_error_string(event));
            shared_of(opaque).note_error(client_error(rk, code, reason));
        }
        sys::rd_kafka_event_destroy(event);
    }
}

/// Replaces the marker for a fatal error by the error that was fatal.
///
/// # Safety
/// `rk` is a live client.
unsafe fn client_error(
    rk: *mut sys::rd_kafka_t,
    code: ErrorCode,
    reason: Option<String>,
) -> ClientError {
    let at = Instant::now();
    let fatal = code == ErrorCode::FATAL;
    let reason = reason.unwrap_or_else(|| code.text());
    if !fatal {
        return ClientError {
            error: KafkaError { code, text: reason },
            fatal,
            at,
        };
    }
    let mut buffer: [c_char; 512] = [0; 512];
    // SAFETY: a live client and a buffer with its size.
    let code =
        ErrorCode(unsafe { coded::rd_kafka_fatal_error(rk, buffer.as_mut_ptr(), buffer.len()) });
    // SAFETY: a terminated string, or nothing in a zeroed buffer.
    let text = unsafe { text(buffer.as_ptr()) }
        .filter(|text| !text.is_empty())
        .unwrap_or(reason);
    ClientError {
        error: KafkaError { code, text },
        fatal,
        at,
    }
}

/// The deadline of a call as a point in time.
pub(crate) fn until(deadline: Duration) -> Instant {
    // A duration beyond the clock's range is as good as a year.
    Instant::now()
        .checked_add(deadline)
        .unwrap_or_else(|| Instant::now() + Duration::from_secs(31_536_000))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_broker_that_gets_its_id_is_counted_once() {
        let mut connections = Connections::default();
        connections.note(-1, "a", 9092, true);
        assert_eq!(connections.0.len(), 1);
        connections.note(1, "a", 9092, true);
        connections.note(-1, "a", 9092, false);
        connections.note(2, "b", 9092, true);
        assert_eq!(connections.0.len(), 2);
        connections.note(1, "a", 9092, false);
        connections.note(2, "b", 9092, false);
        assert_eq!(connections.0.len(), 0);
    }
}
