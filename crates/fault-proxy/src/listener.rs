//! The port: accepts, or refuses without letting go of its number.

use std::{
    io,
    net::{Ipv4Addr, SocketAddr},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use tokio::{
    net::{TcpListener, TcpSocket},
    sync::watch,
    task::JoinSet,
};

use crate::{Protocol, connection, faults::Faults};

const BACKLOG: u32 = 1_024;

/// Where connections are forwarded to.
#[derive(Debug)]
pub(crate) struct Target(Mutex<Arc<str>>);

impl Target {
    pub(crate) fn new(target: &str) -> Self {
        Self(Mutex::new(target.into()))
    }

    pub(crate) fn set(&self, target: &str) {
        *self.lock() = target.into();
    }

    fn now(&self) -> Arc<str> {
        Arc::clone(&self.lock())
    }

    fn lock(&self) -> MutexGuard<'_, Arc<str>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

pub(crate) struct Listener(TcpListener);

impl Listener {
    pub(crate) fn bind() -> io::Result<Self> {
        Ok(Self(
            holding((Ipv4Addr::LOCALHOST, 0).into())?.listen(BACKLOG)?,
        ))
    }

    pub(crate) fn address(&self) -> io::Result<SocketAddr> {
        self.0.local_addr()
    }

    /// Serves for as long as it is polled.
    pub(crate) async fn run(self, target: Arc<Target>, protocol: Protocol, faults: Arc<Faults>) {
        let Ok(address) = self.address() else {
            return;
        };
        let mut connections = JoinSet::new();
        let mut refuse = faults.refuse();
        let mut listener = self.0;
        loop {
            tokio::select! {
                accepted = listener.accept() => {
                    let Ok((client, _)) = accepted else { continue };
                    let (target, open) = (target.now(), faults.opened());
                    connections.spawn(async move {
                        connection::serve(client, &target, protocol, &open).await;
                    });
                }
                Some(_ended) = connections.join_next() => {}
                () = becomes(&mut refuse, true) => {
                    // Bound before the port is let go, so that nobody else gets it; a socket that is bound and does not
                    // listen refuses.
                    let Ok(held) = holding(address) else { return };
                    drop(listener);
                    faults.note_refusing(true);
                    becomes(&mut refuse, false).await;
                    let Ok(again) = held.listen(BACKLOG) else { return };
                    listener = again;
                    faults.note_refusing(false);
                }
            }
        }
    }
}

async fn becomes(switch: &mut watch::Receiver<bool>, wanted: bool) {
    // Cannot fail: the listener holds the switches.
    drop(switch.wait_for(|now| *now == wanted).await);
}

/// A socket that holds a port without listening.
fn holding(address: SocketAddr) -> io::Result<TcpSocket> {
    let socket = TcpSocket::new_v4()?;
    socket.set_reuseaddr(true)?;
    socket.set_reuseport(true)?;
    socket.bind(address)?;
    Ok(socket)
}
