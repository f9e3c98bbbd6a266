//! One connection: two directions, each read by a filter and written after its delay.

use std::{io, sync::Mutex, time::Duration};

use bytes::{Bytes, BytesMut};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{
        TcpStream,
        tcp::{ReadHalf, WriteHalf},
    },
    sync::{mpsc, watch},
    time::{Instant, sleep_until, timeout},
};

use crate::{
    Protocol,
    faults::{Direction, Faults, Mode, Open},
    postgres,
};

/// How long the server may take to accept.
const CONNECT_WITHIN: Duration = Duration::from_secs(10);
/// Most parcels of a direction that are on their way. With latency this bounds the throughput, far above what tests send.
const ON_THE_WAY: usize = 1_024;
const READ_AT_ONCE: usize = 64 * 1_024;

/// How a connection ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum End {
    /// As one side ended it.
    Closed,
    /// With a reset of both.
    Reset,
}

/// What a filter makes of what it has read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// It passes.
    Pass,
    /// It passes, and both sides are reset then.
    ThenReset,
    /// It passes, and nothing that comes after it.
    ThenSwallow,
}

/// Looks at one direction. Moves what passes from `read` to `pass`; what is left in `read` waits for more.
pub(crate) trait Filter {
    fn look(&mut self, read: &mut BytesMut, pass: &mut BytesMut) -> Verdict;
}

struct PassAll;

impl Filter for PassAll {
    fn look(&mut self, read: &mut BytesMut, pass: &mut BytesMut) -> Verdict {
        pass.unsplit(read.split());
        Verdict::Pass
    }
}

enum Parcel {
    Bytes(Instant, Bytes),
    End(Instant, End),
}

/// Serves a client until one side ends the connection, or a fault does.
pub(crate) async fn serve(mut client: TcpStream, target: &str, protocol: Protocol, open: &Open) {
    let faults = open.faults();
    let cut = open.cut();
    tokio::pin!(cut);
    let session = async {
        let read = match protocol {
            Protocol::Bytes => BytesMut::new(),
            Protocol::Postgres => postgres::before_start(&mut client, faults.mode()).await?,
        };
        let server = timeout(CONNECT_WITHIN, TcpStream::connect(target)).await??;
        Ok::<_, io::Error>((read, server))
    };
    let begun = tokio::select! {
        begun = session => begun,
        () = &mut cut => Err(io::ErrorKind::ConnectionReset.into()),
    };
    let Ok((read, mut server)) = begun else {
        return reset(&client);
    };
    // Small messages and their answers must not wait for each other; without it everything is only slower.
    let _slower = (client.set_nodelay(true), server.set_nodelay(true));
    let end = tokio::select! {
        end = forward(&mut client, &mut server, protocol, read, faults) => end,
        () = &mut cut => End::Reset,
    };
    if end == End::Reset {
        reset(&client);
        reset(&server);
    }
}

/// The socket is reset when it is dropped, instead of closed in order.
fn reset(stream: &TcpStream) {
    // Fails only when the peer has ended the connection already.
    let _ended = stream.set_zero_linger();
}

async fn forward(
    client: &mut TcpStream,
    server: &mut TcpStream,
    protocol: Protocol,
    read: BytesMut,
    faults: &Faults,
) -> End {
    match protocol {
        Protocol::Bytes => exchange(client, server, (PassAll, PassAll), read, faults).await,
        Protocol::Postgres => {
            let session = Mutex::new(postgres::Session::default());
            let requests = postgres::Requests::new(&session, faults);
            let answers = postgres::Answers::new(&session, faults);
            exchange(client, server, (requests, answers), read, faults).await
        }
    }
}

async fn exchange<R: Filter, A: Filter>(
    client: &mut TcpStream,
    server: &mut TcpStream,
    (requests, answers): (R, A),
    read: BytesMut,
    faults: &Faults,
) -> End {
    // Borrowed halves: dropping them sends nothing, so that a reset is all that the peers see.
    let (client_read, client_write) = client.split();
    let (server_read, server_write) = server.split();
    let up = Pump {
        filter: requests,
        direction: Direction::ToServer,
        buffer: read,
        mode: faults.mode(),
    };
    let down = Pump {
        filter: answers,
        direction: Direction::ToClient,
        buffer: BytesMut::new(),
        mode: faults.mode(),
    };
    tokio::select! {
        end = up.run(client_read, server_write) => end,
        end = down.run(server_read, client_write) => end,
    }
}

/// One direction.
struct Pump<F> {
    filter: F,
    direction: Direction,
    /// Read, and not looked at yet.
    buffer: BytesMut,
    mode: watch::Receiver<Mode>,
}

impl<F: Filter> Pump<F> {
    async fn run(self, from: ReadHalf<'_>, to: WriteHalf<'_>) -> End {
        let (sender, receiver) = mpsc::channel(ON_THE_WAY);
        let mode = self.mode.clone();
        let (_, end) = tokio::join!(self.read(from, sender), write(to, receiver, mode));
        end
    }

    async fn read(mut self, mut from: ReadHalf<'_>, parcels: mpsc::Sender<Parcel>) {
        loop {
            let due = self.due();
            let mut pass = BytesMut::new();
            let verdict = self.filter.look(&mut self.buffer, &mut pass);
            if !pass.is_empty()
                && parcels
                    .send(Parcel::Bytes(due, pass.freeze()))
                    .await
                    .is_err()
            {
                return;
            }
            let end = match verdict {
                Verdict::Pass => {
                    self.buffer.reserve(READ_AT_ONCE);
                    ended(&from.read_buf(&mut self.buffer).await)
                }
                Verdict::ThenReset => Some(End::Reset),
                Verdict::ThenSwallow => return swallow(from).await,
            };
            if let Some(end) = end {
                // Taken or not: either way the connection is over.
                let _over = parcels.send(Parcel::End(self.due(), end)).await;
                return;
            }
        }
    }

    fn due(&self) -> Instant {
        Instant::now() + self.mode.borrow().latency(self.direction)
    }
}

/// Reads and forgets. That the sender ended is swallowed as well: the other direction ends the connection.
async fn swallow(mut from: ReadHalf<'_>) {
    let mut forgotten = vec![0; READ_AT_ONCE];
    while ended(&from.read(&mut forgotten).await).is_none() {}
    std::future::pending::<()>().await;
}

fn ended(read: &io::Result<usize>) -> Option<End> {
    match read {
        Ok(0) => Some(End::Closed),
        Ok(_) => None,
        Err(_) => Some(End::Reset),
    }
}

async fn write(
    mut to: WriteHalf<'_>,
    mut parcels: mpsc::Receiver<Parcel>,
    mut mode: watch::Receiver<Mode>,
) -> End {
    while let Some(parcel) = parcels.recv().await {
        let (Parcel::Bytes(due, _) | Parcel::End(due, _)) = &parcel;
        sleep_until(*due).await;
        if mode.wait_for(|mode| !mode.frozen).await.is_err() {
            return End::Closed;
        }
        match parcel {
            Parcel::Bytes(_, bytes) => {
                if to.write_all(&bytes).await.is_err() {
                    return End::Reset;
                }
            }
            Parcel::End(_, end) => return end,
        }
    }
    End::Closed
}
