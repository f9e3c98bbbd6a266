//! What the proxy does to bytes, seen from a client and a server on loopback.
#![cfg(test)]

use std::{
    io::ErrorKind,
    time::{Duration, Instant},
};

use fault_proxy::{Direction, Protocol, Proxy};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream},
    task::JoinSet,
    time::timeout,
};

const SOON: Duration = Duration::from_secs(10);
/// Long enough for anything that moves on loopback to arrive.
const A_WHILE: Duration = Duration::from_millis(300);

/// A server that sends back what it gets, and a proxy before it.
struct Echo {
    proxy: Proxy,
    _server: JoinSet<()>,
}

impl Echo {
    async fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let target = listener.local_addr().unwrap().to_string();
        let mut server = JoinSet::new();
        server.spawn(async move {
            let mut connections = JoinSet::new();
            while let Ok((mut stream, _)) = listener.accept().await {
                connections.spawn(async move {
                    let (mut read, mut write) = stream.split();
                    let _ended = tokio::io::copy(&mut read, &mut write).await;
                });
            }
        });
        Self {
            proxy: Proxy::start(&target, Protocol::Bytes).unwrap(),
            _server: server,
        }
    }

    async fn connect(&self) -> TcpStream {
        let mut stream = TcpStream::connect(self.proxy.address()).await.unwrap();
        assert_eq!(echo(&mut stream, b"hello").await, b"hello");
        stream
    }
}

async fn echo(stream: &mut TcpStream, bytes: &[u8]) -> Vec<u8> {
    stream.write_all(bytes).await.unwrap();
    let mut answer = vec![0; bytes.len()];
    timeout(SOON, stream.read_exact(&mut answer))
        .await
        .unwrap()
        .unwrap();
    answer
}

#[tokio::test]
async fn bytes_pass_as_they_are() {
    let echo_server = Echo::start().await;
    let mut stream = echo_server.connect().await;
    let (mut read, mut write) = stream.split();
    let sent: Vec<u8> = (0..4_000_000_u32).map(|n| n.to_le_bytes()[1]).collect();
    let mut got = vec![0; sent.len()];
    let (written, read) = tokio::join!(write.write_all(&sent), read.read_exact(&mut got));
    written.unwrap();
    read.unwrap();
    assert!(got == sent);
}

#[tokio::test]
async fn latency_is_per_direction_and_does_not_add_up() {
    let echo_server = Echo::start().await;
    let mut stream = echo_server.connect().await;
    for direction in [Direction::ToServer, Direction::ToClient] {
        echo_server
            .proxy
            .set_latency(direction, Duration::from_millis(200));
        let from = Instant::now();
        // Sent one after the other, on their way together.
        for byte in 0..20 {
            stream.write_all(&[byte]).await.unwrap();
        }
        let mut answer = [0; 20];
        timeout(SOON, stream.read_exact(&mut answer))
            .await
            .unwrap()
            .unwrap();
        let took = from.elapsed();
        assert!(took >= Duration::from_millis(200), "{took:?}");
        assert!(took < Duration::from_secs(3), "{took:?}");
        echo_server.proxy.heal().await;
    }
}

#[tokio::test]
async fn frozen_nothing_moves_and_nothing_ends() {
    let echo_server = Echo::start().await;
    let mut stream = echo_server.connect().await;
    let leaving = echo_server.connect().await;
    echo_server.proxy.freeze();
    stream.write_all(b"x").await.unwrap();
    drop(leaving);
    let mut newcomer = TcpStream::connect(echo_server.proxy.address())
        .await
        .unwrap();
    newcomer.write_all(b"y").await.unwrap();
    let mut byte = [0];
    assert!(timeout(A_WHILE, stream.read(&mut byte)).await.is_err());
    assert!(timeout(A_WHILE, newcomer.read(&mut byte)).await.is_err());
    assert_eq!(echo_server.proxy.connections(), 3);
    echo_server.proxy.thaw();
    for (stream, sent) in [(&mut stream, b"x"), (&mut newcomer, b"y")] {
        timeout(SOON, stream.read_exact(&mut byte))
            .await
            .unwrap()
            .unwrap();
        assert_eq!(&byte, sent);
    }
}

#[tokio::test]
async fn a_cut_resets_all_connections_also_frozen_ones_and_no_later_one() {
    let echo_server = Echo::start().await;
    for frozen in [false, true] {
        let mut streams = [echo_server.connect().await, echo_server.connect().await];
        if frozen {
            echo_server.proxy.freeze();
        }
        assert_eq!(echo_server.proxy.cut().await, 2);
        assert_eq!(echo_server.proxy.connections(), 0);
        for stream in &mut streams {
            let read = timeout(SOON, stream.read(&mut [0])).await.unwrap();
            assert_eq!(read.unwrap_err().kind(), ErrorKind::ConnectionReset);
        }
        echo_server.proxy.thaw();
        echo_server.connect().await;
        assert_eq!(echo_server.proxy.cut().await, 1);
    }
}

#[tokio::test]
async fn refused_connections_do_not_come_about_and_open_ones_stay() {
    let echo_server = Echo::start().await;
    let mut stream = echo_server.connect().await;
    for _ in 0..2 {
        echo_server.proxy.refuse().await;
        let refused = TcpStream::connect(echo_server.proxy.address()).await;
        assert_eq!(refused.unwrap_err().kind(), ErrorKind::ConnectionRefused);
        assert_eq!(echo(&mut stream, b"still here").await, b"still here");
        echo_server.proxy.accept().await;
        echo_server.connect().await;
    }
}

#[tokio::test]
async fn a_target_that_is_away_resets_the_client() {
    let nobody = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let target = nobody.local_addr().unwrap().to_string();
    drop(nobody);
    let proxy = Proxy::start(&target, Protocol::Bytes).unwrap();
    let mut stream = TcpStream::connect(proxy.address()).await.unwrap();
    let read = timeout(SOON, stream.read(&mut [0])).await.unwrap();
    assert_eq!(read.unwrap_err().kind(), ErrorKind::ConnectionReset);
}
