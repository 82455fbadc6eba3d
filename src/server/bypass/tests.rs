use std::collections::VecDeque;
use std::future::ready;

use http_body_util::BodyExt;
use hyper::server::conn::http1::Builder;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream};
use tokio::task::JoinHandle;

use super::*;

/// A body of pieces of these lengths, which waits a moment at each `None`.
struct Pieces(VecDeque<Option<usize>>);

impl http_body::Body for Pieces {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Polled> {
        let next = self.get_mut().0.pop_front();
        if next == Some(None) {
            cx.waker().wake_by_ref();
            return Poll::Pending;
        }
        Poll::Ready(next.flatten().map(|length| Ok(Frame::data(piece(length)))))
    }
}

/// Bytes that no other piece of another length has.
fn piece(length: usize) -> Bytes {
    let byte = |at: usize| b'a' + ((at * 7 + length) % 26) as u8;
    (0..length).map(byte).collect()
}

/// Serves a connection with `service`.
fn connect<A, F>(stream: DuplexStream, service: A) -> JoinHandle<hyper::Result<()>>
where
    A: Service<Request<RequestBody>, Response = Response<Body>, Error = Infallible, Future = F>,
    A: Send + 'static,
    F: Unpin + Send + 'static,
{
    let bypass = Bypass::new(stream);
    let (io, service) = (TokioIo::new(bypass.io()), bypass.service(service));
    let hyper = Builder::new().serve_connection(io, service);
    tokio::spawn(bypass.run(Box::pin(hyper)))
}

fn serve(stream: DuplexStream, pieces: &[Option<usize>]) -> JoinHandle<hyper::Result<()>> {
    let pieces: VecDeque<_> = pieces.iter().copied().collect();
    let answer = move |_| {
        let body = Body::new(Pieces(pieces.clone()));
        ready(Ok(Response::new(body)))
    };
    connect(stream, service_fn(answer))
}

/// What a client gets that sends `request` and reads to the end, over a pipe of `room` bytes.
async fn ask(room: usize, request: &str, pieces: &[Option<usize>]) -> Vec<u8> {
    let (mut client, server) = tokio::io::duplex(room);
    let connection = serve(server, pieces);
    client.write_all(request.as_bytes()).await.unwrap();
    let mut answer = Vec::new();
    client.read_to_end(&mut answer).await.unwrap();
    connection.await.unwrap().unwrap();
    let head = answer.windows(4).position(|at| at == b"\r\n\r\n").unwrap();
    answer.split_off(head + 4)
}

/// Pieces of all lengths of one to four digits, some at once and some after each other.
fn mixed() -> Vec<Option<usize>> {
    let lengths = [
        1, 15, 16, 300, 0, 255, 256, 4096, 20_000, 3, 65_536, 2, 2, 320,
    ];
    let alone = lengths.iter().flat_map(|length| [Some(*length), None]);
    let close = lengths.iter().map(|length| Some(*length));
    let waits = [None, None, None];
    waits
        .into_iter()
        .chain(alone)
        .chain(close)
        .chain(waits)
        .collect()
}

fn chunks(pieces: &[Option<usize>]) -> Vec<u8> {
    let mut all = Vec::new();
    for length in pieces.iter().flatten().filter(|length| **length > 0) {
        all.extend(format!("{length:X}\r\n").bytes());
        all.extend(piece(*length));
        all.extend(b"\r\n");
    }
    all.extend(b"0\r\n\r\n");
    all
}

#[tokio::test]
async fn every_piece_is_a_chunk_however_little_the_socket_takes() {
    for room in [1, 7, 64, 5_000, 1_000_000] {
        let request = "GET / HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n";
        let pieces = mixed();
        let answer = ask(room, request, &pieces).await;
        assert!(answer == chunks(&pieces), "room for {room}");
    }
}

#[test]
fn a_frame_is_as_many_chunks_as_it_tells() {
    let split = |lengths: &[u32]| {
        let mut chunks = Chunks::new();
        chunks.lengths.extend(lengths);
        chunks.put_frame(b"abcdef");
        String::from_utf8(chunks.bytes).unwrap()
    };
    assert_eq!(split(&[]), "6\r\nabcdef\r\n");
    assert_eq!(split(&[1, 2, 3]), "1\r\na\r\n2\r\nbc\r\n3\r\ndef\r\n");
    // Nothing is lost of one that is not what was told.
    assert_eq!(split(&[4]), "4\r\nabcd\r\n2\r\nef\r\n");
    assert_eq!(split(&[4, 4]), "4\r\nabcd\r\n2\r\nef\r\n");
}

#[tokio::test]
async fn bodies_are_read_to_their_ends_however_they_come() {
    let (mut client, server) = tokio::io::duplex(64);
    let count = |request: Request<RequestBody>| {
        Box::pin(async {
            let body = request.into_body().collect().await.unwrap().to_bytes();
            Ok(Response::new(Body::from(format!("{:05}", body.len()))))
        })
    };
    let connection = connect(server, service_fn(count));
    let length = "POST / HTTP/1.1\r\nhost: x\r\ncontent-length: 20000\r\n\r\n";
    let chunked = "POST / HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n";
    for (head, body) in [
        (length, "x".repeat(20_000)),
        (
            chunked,
            format!("{}0\r\n\r\n", "7\r\nchunked\r\n".repeat(900)),
        ),
        (
            "POST / HTTP/1.1\r\nhost: x\r\ncontent-length: 3\r\n\r\n",
            "abc".to_owned(),
        ),
        ("GET / HTTP/1.1\r\nhost: x\r\n\r\n", String::new()),
    ] {
        let bytes = body.matches("chunked").count() * 7;
        let bytes = if bytes > 0 { bytes } else { body.len() };
        client.write_all(head.as_bytes()).await.unwrap();
        client.write_all(body.as_bytes()).await.unwrap();
        let mut answer = Vec::new();
        while !answer.ends_with(format!("\r\n\r\n{bytes:05}").as_bytes()) {
            answer.push(client.read_u8().await.unwrap());
        }
    }
    drop(client);
    connection.await.unwrap().unwrap();
}

#[tokio::test]
async fn a_client_of_http_1_0_gets_no_chunks() {
    let answer = ask(64, "GET / HTTP/1.0\r\n\r\n", &[Some(5), None, Some(17)]).await;
    assert_eq!(answer, [piece(5), piece(17)].concat());
}

#[tokio::test]
async fn a_request_may_follow_before_the_answer_ends() {
    let request =
        "GET / HTTP/1.1\r\nhost: x\r\n\r\nGET / HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n";
    let pieces = [Some(5), None, Some(17), None];
    let answer = ask(64, request, &pieces).await;
    let expected = chunks(&pieces);
    assert!(answer.starts_with(&expected) && answer.ends_with(&expected));
    assert!(answer.len() > 2 * expected.len());
}

#[tokio::test]
async fn what_breaks_off_says_what_it_had_and_closes() {
    let (mut client, server) = tokio::io::duplex(64);
    let answer = |_| {
        let said = [
            Ok(piece(5)),
            Ok(piece(300)),
            Err(io::Error::other("enough")),
        ];
        let body = Body::from_stream(futures_util::stream::iter(said));
        ready(Ok(Response::new(body)))
    };
    let connection = connect(server, service_fn(answer));
    let request = b"GET / HTTP/1.1\r\nhost: x\r\n\r\n";
    client.write_all(request).await.unwrap();
    let mut said = Vec::new();
    client.read_to_end(&mut said).await.unwrap();
    assert!(connection.await.unwrap().is_err());
    let all = chunks(&[Some(5), Some(300)]);
    let open = &all[..all.len() - b"0\r\n\r\n".len()];
    assert!(said.ends_with(open));
}

#[tokio::test]
async fn the_body_is_dropped_when_the_client_leaves() {
    struct Endless {
        _held: Arc<()>,
    }

    impl http_body::Body for Endless {
        type Data = Bytes;
        type Error = axum::Error;

        fn poll_frame(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Polled> {
            Poll::Pending
        }
    }

    let (mut client, server) = tokio::io::duplex(64);
    let held = Arc::new(());
    let guard = held.clone();
    let answer = move |_| {
        let body = Body::new(Endless {
            _held: guard.clone(),
        });
        ready(Ok(Response::new(body)))
    };
    let connection = connect(server, service_fn(answer));
    let request = b"GET / HTTP/1.1\r\nhost: x\r\n\r\n";
    client.write_all(request).await.unwrap();
    client.read_exact(&mut [0; 10]).await.unwrap();
    drop(client);
    // It ends with the connection that was left.
    let _ = connection.await.unwrap();
    assert_eq!(Arc::strong_count(&held), 1);
}
