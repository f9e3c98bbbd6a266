//! PostgreSQL's messages, as far as it takes to know a COMMIT and its answer (manual, chapter "Frontend/Backend Protocol").
//!
//! After the start packet a message is one byte of kind, four bytes of length (its own included) and a payload. A COMMIT
//! comes as a simple query, or as the execution of a portal that was bound to a statement that was parsed before. Its answer
//! is the tag of a `CommandComplete`; one that took no effect is answered by `ROLLBACK` or an error instead, and the fault
//! that was meant for it is armed again.
//!
//! Not understood: a `Sync` that is sent while the server takes a COPY, which the server leaves unanswered. Statements are
//! split at every semicolon, also at one in a literal.

use std::{
    collections::HashMap,
    io,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use bytes::{Buf, BytesMut};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
    sync::watch,
};

use crate::{
    connection::{Filter, Verdict},
    faults::{Armed, CommitFault, Faults, Mode},
};

/// The codes of requests for encryption, in the place of a protocol version.
const WANTS_ENCRYPTION: [u32; 2] = [80_877_103, 80_877_104];
/// Larger than anything a test sends. What claims more is no message.
const LARGEST: usize = 256 * 1_024 * 1_024;
/// Most statements of one transaction that are remembered.
const REMEMBERED: usize = 256;

/// Reads up to the packet that starts the session, which is left in the answer, and declines encryption.
pub(crate) async fn before_start(
    client: &mut TcpStream,
    mut mode: watch::Receiver<Mode>,
) -> io::Result<BytesMut> {
    loop {
        let mut head = [0; 8];
        client.read_exact(&mut head).await?;
        // Fails only when the proxy is gone.
        drop(mode.wait_for(|mode| !mode.frozen).await);
        let mut code = &head[4..];
        if !WANTS_ENCRYPTION.contains(&code.get_u32()) {
            return Ok(BytesMut::from(&head[..]));
        }
        client.write_all(b"N").await?;
    }
}

/// What both directions of a connection have to know.
#[derive(Debug, Default)]
pub(crate) struct Session {
    /// Requests that the server answers with a `ReadyForQuery`, and how many it has answered.
    asked: u64,
    answered: u64,
    is_ready: bool,
    /// The COMMIT under way that is to lose its answer, and the number of its request.
    losing: Option<(u64, Armed)>,
}

fn lock(session: &Mutex<Session>) -> MutexGuard<'_, Session> {
    session.lock().unwrap_or_else(PoisonError::into_inner)
}

/// From the client to the server.
pub(crate) struct Requests<'a> {
    session: &'a Mutex<Session>,
    faults: &'a Faults,
    has_started: bool,
    statements: HashMap<Vec<u8>, Arc<str>>,
    portals: HashMap<Vec<u8>, Arc<str>>,
    /// What was executed since the last BEGIN.
    transaction: Vec<Arc<str>>,
}

impl<'a> Requests<'a> {
    pub(crate) fn new(session: &'a Mutex<Session>, faults: &'a Faults) -> Self {
        Self {
            session,
            faults,
            has_started: false,
            statements: HashMap::new(),
            portals: HashMap::new(),
            transaction: Vec::new(),
        }
    }

    /// Takes note of a message; answers whether it may reach the server.
    fn admit(&mut self, message: &Message<'_>) -> bool {
        let mut payload = message.payload;
        match message.kind {
            b'Q' => {
                lock(self.session).asked += 1;
                let text = text(string(&mut payload));
                let request = lock(self.session).asked;
                return self.executes(&text, request);
            }
            b'S' | b'F' => lock(self.session).asked += 1,
            b'P' => {
                let name = string(&mut payload).to_vec();
                self.statements.insert(name, text(string(&mut payload)));
            }
            b'B' => {
                let portal = string(&mut payload).to_vec();
                if let Some(text) = self.statements.get(string(&mut payload)) {
                    self.portals.insert(portal, Arc::clone(text));
                }
            }
            b'C' => {
                let (of, name) = payload.split_first().unwrap_or((&0, &[]));
                let name = string(&mut &*name);
                match of {
                    b'S' => self.statements.remove(name),
                    _ => self.portals.remove(name),
                };
            }
            b'E' => {
                let request = lock(self.session).asked + 1;
                if let Some(text) = self.portals.get(string(&mut payload)).cloned() {
                    return self.executes(&text, request);
                }
            }
            _ => {}
        }
        true
    }

    fn executes(&mut self, text: &Arc<str>, request: u64) -> bool {
        if begins_any(text, &["begin", "start"]) {
            self.transaction.clear();
        }
        if self.transaction.len() < REMEMBERED {
            self.transaction.push(Arc::clone(text));
        }
        if !begins_any(text, &["commit", "end"]) {
            return true;
        }
        let statements = std::mem::take(&mut self.transaction);
        let touches = |part: &str| statements.iter().any(|text| text.contains(part));
        let mut session = lock(self.session);
        if session.losing.is_some() {
            // A second one before the first is answered: this client will not read that answer.
            return true;
        }
        match self.faults.take(touches) {
            Some(armed) if armed.fault == CommitFault::BeforeServer => {
                self.faults.count(armed.fault);
                false
            }
            losing => {
                session.losing = losing.map(|armed| (request, armed));
                true
            }
        }
    }
}

impl Filter for Requests<'_> {
    fn look(&mut self, read: &mut BytesMut, pass: &mut BytesMut) -> Verdict {
        if !self.has_started {
            // Shaped like a message without its kind.
            match length(read) {
                Ok(Some(length)) => pass.unsplit(read.split_to(length)),
                Ok(None) => return Verdict::Pass,
                Err(NoMessage) => return Verdict::ThenReset,
            }
            self.has_started = true;
        }
        each_message(read, pass, |message| {
            if self.admit(message) {
                Verdict::Pass
            } else {
                Verdict::ThenReset
            }
        })
    }
}

/// From the server to the client.
pub(crate) struct Answers<'a> {
    session: &'a Mutex<Session>,
    faults: &'a Faults,
}

impl<'a> Answers<'a> {
    pub(crate) fn new(session: &'a Mutex<Session>, faults: &'a Faults) -> Self {
        Self { session, faults }
    }

    fn admit(&self, message: &Message<'_>) -> Verdict {
        let mut session = lock(self.session);
        match message.kind {
            b'C' if string(&mut &*message.payload) == b"COMMIT" => {
                let under_way = session.answered + 1;
                let Some((_, armed)) = session.losing.take_if(|(request, _)| *request == under_way)
                else {
                    return Verdict::Pass;
                };
                self.faults.count(armed.fault);
                return match armed.fault {
                    CommitFault::AnswerSwallowed => Verdict::ThenSwallow,
                    CommitFault::AnswerDropped | CommitFault::BeforeServer => Verdict::ThenReset,
                };
            }
            // The first one ends the start, which nobody asked for by a message.
            b'Z' if !session.is_ready => session.is_ready = true,
            b'Z' => {
                session.answered += 1;
                let answered = session.answered;
                if let Some((_, armed)) =
                    session.losing.take_if(|(request, _)| *request <= answered)
                {
                    self.faults.give_back(armed);
                }
            }
            _ => {}
        }
        Verdict::Pass
    }
}

impl Filter for Answers<'_> {
    fn look(&mut self, read: &mut BytesMut, pass: &mut BytesMut) -> Verdict {
        each_message(read, pass, |message| self.admit(message))
    }
}

struct Message<'a> {
    kind: u8,
    payload: &'a [u8],
}

/// Moves the messages that pass; the one with another verdict is left out, and ends the look.
fn each_message(
    read: &mut BytesMut,
    pass: &mut BytesMut,
    mut judge: impl FnMut(&Message<'_>) -> Verdict,
) -> Verdict {
    let mut passed = 0;
    let verdict = loop {
        let Some((kind, rest)) = read[passed..].split_first() else {
            break Verdict::Pass;
        };
        let length = match length(rest) {
            Ok(Some(length)) => length,
            Ok(None) => break Verdict::Pass,
            Err(NoMessage) => break Verdict::ThenReset,
        };
        let verdict = judge(&Message {
            kind: *kind,
            payload: &rest[4..length],
        });
        if verdict != Verdict::Pass {
            break verdict;
        }
        passed += 1 + length;
    };
    pass.unsplit(read.split_to(passed));
    verdict
}

/// What passes here is no PostgreSQL.
#[derive(Debug, PartialEq, Eq)]
struct NoMessage;

/// The length that a message says it has, if all of it is there.
fn length(read: &[u8]) -> Result<Option<usize>, NoMessage> {
    let Some(mut head) = read.get(..4) else {
        return Ok(None);
    };
    let length = usize::try_from(head.get_u32()).unwrap_or(usize::MAX);
    if !(4..=LARGEST).contains(&length) {
        return Err(NoMessage);
    }
    Ok((read.len() >= length).then_some(length))
}

/// Takes a string off the front; without its end it is all there is.
fn string<'a>(payload: &mut &'a [u8]) -> &'a [u8] {
    let end = payload.iter().position(|byte| *byte == 0);
    let (string, rest) = payload.split_at(end.unwrap_or(payload.len()));
    *payload = rest.get(1..).unwrap_or_default();
    string
}

fn text(bytes: &[u8]) -> Arc<str> {
    String::from_utf8_lossy(bytes).into()
}

/// Whether a statement of the text begins with one of these words.
fn begins_any(text: &str, words: &[&str]) -> bool {
    text.split(';').any(|statement| {
        let word = statement
            .trim_start()
            .split(|character: char| !character.is_ascii_alphabetic())
            .next()
            .unwrap_or_default();
        words.iter().any(|wanted| word.eq_ignore_ascii_case(wanted))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn message(kind: u8, payload: &[u8]) -> Vec<u8> {
        let mut message = vec![kind];
        message.extend(u32::try_from(payload.len() + 4).unwrap().to_be_bytes());
        message.extend(payload);
        message
    }

    fn start() -> Vec<u8> {
        message(0, b"\0\x03\0\0user\0me\0\0")[1..].to_vec()
    }

    fn query(text: &str) -> Vec<u8> {
        message(b'Q', format!("{text}\0").as_bytes())
    }

    fn ready() -> Vec<u8> {
        message(b'Z', b"I")
    }

    fn tag(text: &str) -> Vec<u8> {
        message(b'C', format!("{text}\0").as_bytes())
    }

    /// Both directions of a connection that has started.
    struct Wire<'a> {
        requests: Requests<'a>,
        answers: Answers<'a>,
    }

    impl<'a> Wire<'a> {
        fn new(session: &'a Mutex<Session>, faults: &'a Faults) -> Self {
            let mut wire = Self {
                requests: Requests::new(session, faults),
                answers: Answers::new(session, faults),
            };
            assert_eq!(wire.request(&start()), (start(), Verdict::Pass));
            assert_eq!(wire.answer(&ready()), (ready(), Verdict::Pass));
            wire
        }

        fn request(&mut self, bytes: &[u8]) -> (Vec<u8>, Verdict) {
            look(&mut self.requests, bytes)
        }

        fn answer(&mut self, bytes: &[u8]) -> (Vec<u8>, Verdict) {
            look(&mut self.answers, bytes)
        }
    }

    fn look(filter: &mut impl Filter, bytes: &[u8]) -> (Vec<u8>, Verdict) {
        let (mut read, mut pass) = (BytesMut::from(bytes), BytesMut::new());
        let verdict = filter.look(&mut read, &mut pass);
        (pass.to_vec(), verdict)
    }

    #[test]
    fn whatever_the_pieces_every_byte_passes_once() {
        let (session, faults) = (Mutex::default(), Faults::default());
        let mut sent = start();
        sent.extend(query("BEGIN"));
        sent.extend(message(b'd', &[7; 100]));
        sent.extend(query("COMMIT"));
        for size in 1..sent.len() {
            let mut requests = Requests::new(&session, &faults);
            let (mut read, mut pass) = (BytesMut::new(), BytesMut::new());
            for piece in sent.chunks(size) {
                read.extend_from_slice(piece);
                assert_eq!(requests.look(&mut read, &mut pass), Verdict::Pass);
            }
            assert_eq!(pass, sent, "in pieces of {size}");
            assert!(read.is_empty());
        }
    }

    #[test]
    fn a_commit_is_known_as_a_simple_query_and_as_a_portal() {
        let simple = [query("COMMIT"), query(" commit;"), query("INSERT ...; end")];
        let parse = message(b'P', b"s1\0COMMIT\0\0\0");
        let bind = message(b'B', b"p1\0s1\0\0\0\0\0\0\0");
        let execute = message(b'E', b"p1\0\0\0\0\0");
        let mut cases: Vec<(Vec<u8>, Vec<u8>)> = simple
            .into_iter()
            .map(|query| (Vec::new(), query))
            .collect();
        cases.push(([parse, bind].concat(), execute));
        for (before, commit) in cases {
            let (session, faults) = (Mutex::default(), Faults::default());
            let mut wire = Wire::new(&session, &faults);
            faults.arm(CommitFault::BeforeServer, None, 1);
            let sent = [&before[..], &commit[..], &query("SELECT 1")[..]].concat();
            assert_eq!(
                wire.request(&sent),
                (before, Verdict::ThenReset),
                "{}",
                String::from_utf8_lossy(&commit)
            );
            assert_eq!(faults.effective().before_server, 1);
        }
    }

    #[test]
    fn what_is_no_commit_passes() {
        let (session, faults) = (Mutex::default(), Faults::default());
        let mut wire = Wire::new(&session, &faults);
        faults.arm(CommitFault::BeforeServer, None, 1);
        let closed = [
            message(b'P', b"s\0COMMIT\0\0\0"),
            message(b'B', b"p\0s\0\0\0\0\0\0\0"),
            message(b'C', b"Pp\0"),
            message(b'E', b"p\0\0\0\0\0"),
        ]
        .concat();
        let others = [
            query("SELECT 'COMMIT'"),
            query("commits"),
            query("ROLLBACK"),
            query(""),
            closed,
        ];
        for other in others {
            assert_eq!(wire.request(&other), (other.clone(), Verdict::Pass));
        }
        assert_eq!((faults.armed(), faults.effective().total()), (1, 0));
    }

    #[test]
    fn the_answer_that_is_lost_is_that_of_the_commit() {
        for (fault, verdict) in [
            (CommitFault::AnswerDropped, Verdict::ThenReset),
            (CommitFault::AnswerSwallowed, Verdict::ThenSwallow),
        ] {
            let (session, faults) = (Mutex::default(), Faults::default());
            let mut wire = Wire::new(&session, &faults);
            faults.arm(fault, None, 1);
            // Sent at once, without waiting for answers.
            let sent = [query("INSERT ..."), query("COMMIT"), query("SELECT 1")].concat();
            assert_eq!(wire.request(&sent), (sent.clone(), Verdict::Pass));
            let inserted = [tag("INSERT 0 1"), ready()].concat();
            let answers = [&inserted[..], &tag("COMMIT"), &ready()].concat();
            assert_eq!(wire.answer(&answers), (inserted, verdict));
            assert_eq!((faults.armed(), faults.effective().total()), (0, 1));
        }
    }

    #[test]
    fn a_commit_without_effect_leaves_its_fault_armed() {
        let (session, faults) = (Mutex::default(), Faults::default());
        let mut wire = Wire::new(&session, &faults);
        faults.arm(CommitFault::AnswerDropped, None, 1);
        for answer in [tag("ROLLBACK"), message(b'E', b"SERROR\0\0")] {
            wire.request(&query("COMMIT"));
            assert_eq!(faults.armed(), 0);
            let answer = [answer, ready()].concat();
            assert_eq!(wire.answer(&answer), (answer.clone(), Verdict::Pass));
            assert_eq!((faults.armed(), faults.effective().total()), (1, 0));
        }
    }

    #[test]
    fn a_fault_can_wait_for_a_table() {
        let (session, faults) = (Mutex::default(), Faults::default());
        let mut wire = Wire::new(&session, &faults);
        faults.arm(CommitFault::AnswerDropped, Some("checkpoints"), 1);
        for (statement, taken) in [
            ("INSERT INTO events", false),
            ("INSERT INTO checkpoints", true),
        ] {
            for text in ["BEGIN", statement, "COMMIT"] {
                wire.request(&query(text));
            }
            assert_eq!(faults.armed() == 0, taken, "{statement}");
        }
    }

    #[test]
    fn what_is_no_message_is_cut() {
        let (session, faults) = (Mutex::default(), Faults::default());
        let mut wire = Wire::new(&session, &faults);
        let sent = query("SELECT 1");
        let broken = [&sent[..], b"Q\0\0\0\x01"].concat();
        assert_eq!(wire.request(&broken), (sent, Verdict::ThenReset));
    }
}
