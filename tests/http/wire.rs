//! A client that shows what is on the wire: header lines in their order, chunks as they are cut.

use std::time::Duration;

use tokio::io::{AsyncBufReadExt, AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, BufReader};

/// Longest wait for anything. Only a hang takes that long.
const PATIENCE: Duration = Duration::from_secs(20);

/// A connection.
pub(crate) struct Wire<S>(BufReader<S>);

/// An answer, byte for byte.
#[derive(Debug)]
pub(crate) struct Answer {
    /// Its status.
    pub(crate) status: u16,
    /// Header lines in their order, names in lower case.
    pub(crate) headers: Vec<(String, String)>,
    /// Pieces of a chunked body, as they were cut; one piece otherwise.
    pub(crate) chunks: Vec<String>,
}

impl<S: AsyncRead + AsyncWrite + Unpin> Wire<S> {
    pub(crate) fn new(stream: S) -> Self {
        Self(BufReader::new(stream))
    }

    /// Sends bytes as they are.
    pub(crate) async fn send(&mut self, bytes: &[u8]) {
        self.0.write_all(bytes).await.unwrap();
        self.0.flush().await.unwrap();
    }

    /// Reads one answer to its end.
    pub(crate) async fn answer(&mut self) -> Answer {
        let mut answer = self.head().await;
        if let Some(length) = answer.header("content-length") {
            let mut body = vec![0; length.parse().unwrap()];
            self.patiently(async |wire| wire.read_exact(&mut body).await.map(drop)).await;
            answer.chunks.push(String::from_utf8(body).unwrap());
        } else if answer.header("transfer-encoding") == Some("chunked") {
            while let Some(chunk) = self.chunk().await {
                answer.chunks.push(chunk);
            }
        }
        answer
    }

    /// Reads status and headers.
    pub(crate) async fn head(&mut self) -> Answer {
        let status = self.line().await;
        let code = status.split(' ').nth(1).and_then(|code| code.parse().ok());
        let mut headers = Vec::new();
        loop {
            let line = self.line().await;
            if line.is_empty() {
                break;
            }
            let (name, value) = line.split_once(": ").expect("a header line");
            headers.push((name.to_owned(), value.to_owned()));
        }
        Answer {
            status: code.unwrap_or_else(|| panic!("not a status line: {status:?}")),
            headers,
            chunks: Vec::new(),
        }
    }

    /// Reads one chunk; `None` after the last.
    pub(crate) async fn chunk(&mut self) -> Option<String> {
        let size = usize::from_str_radix(&self.line().await, 16).unwrap();
        let mut data = vec![0; size + 2];
        self.patiently(async |wire| wire.read_exact(&mut data).await.map(drop)).await;
        data.truncate(size);
        (size > 0).then(|| String::from_utf8(data).unwrap())
    }

    /// Reads what is there of a body; `None` once the connection is gone.
    pub(crate) async fn try_chunk(&mut self) -> Option<Vec<u8>> {
        let mut piece = vec![0; 4096];
        let read = tokio::time::timeout(PATIENCE, self.0.read(&mut piece)).await;
        let size = read.expect("the server hangs").unwrap_or(0);
        piece.truncate(size);
        (size > 0).then_some(piece)
    }

    /// Sends bytes to a server that may be gone; whether they could be sent.
    pub(crate) async fn try_send(&mut self, bytes: &[u8]) -> bool {
        self.0.write_all(bytes).await.is_ok() && self.0.flush().await.is_ok()
    }

    /// The status of an answer that may not come.
    pub(crate) async fn try_head(&mut self) -> Option<u16> {
        let start = self.try_chunk().await?;
        String::from_utf8_lossy(&start).split(' ').nth(1)?.parse().ok()
    }

    /// Whether the server has closed the connection; waits for it.
    pub(crate) async fn is_closed(&mut self) -> bool {
        let mut rest = Vec::new();
        let read = tokio::time::timeout(PATIENCE, self.0.read_to_end(&mut rest));
        matches!(read.await, Ok(Ok(0) | Err(_)))
    }

    async fn line(&mut self) -> String {
        let mut line = String::new();
        self.patiently(async |wire| wire.read_line(&mut line).await.map(drop)).await;
        let line = line.strip_suffix("\r\n");
        line.expect("a line that ends, before the connection does").to_owned()
    }

    async fn patiently(&mut self, f: impl AsyncFnOnce(&mut BufReader<S>) -> std::io::Result<()>) {
        let within = tokio::time::timeout(PATIENCE, f(&mut self.0)).await;
        within.expect("the server hangs").unwrap();
    }
}

impl Answer {
    /// The value of a header, which may be there once.
    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        let mut found = self.headers.iter().filter(|(known, _)| known == name);
        let value = found.next().map(|(_, value)| value.as_str());
        assert!(found.next().is_none(), "{name} is there twice");
        value
    }

    /// The whole body.
    pub(crate) fn text(&self) -> String {
        self.chunks.concat()
    }

    /// The whole body as JSON.
    pub(crate) fn json(&self) -> serde_json::Value {
        let text = self.text();
        serde_json::from_str(&text).unwrap_or_else(|error| panic!("{error} in {text:?}"))
    }

    /// Data of each event of a stream; every frame must have its form.
    pub(crate) fn events(&self) -> Vec<String> {
        let kind = Some("text/event-stream; charset=utf-8");
        assert_eq!(self.header("content-type"), kind, "{self:?}");
        let text = self.text();
        let frames = text.strip_suffix("\n\n").expect("a whole last frame");
        let data = frames
            .split("\n\n")
            .map(|f| f.strip_prefix("data: ").unwrap_or_else(|| panic!("{f:?}")));
        data.map(str::to_owned).collect()
    }

    /// The events as JSON, without the final `[DONE]`, which must be there.
    pub(crate) fn deltas(&self) -> Vec<serde_json::Value> {
        let mut events = self.events();
        assert_eq!(events.pop().as_deref(), Some("[DONE]"));
        let parsed = events.iter().map(|event| serde_json::from_str(event));
        parsed.map(Result::unwrap).collect()
    }

    /// The text of choice `index`, whatever the endpoint and whether streamed.
    pub(crate) fn said(&self, index: u64) -> String {
        let parts = match self.header("content-type") {
            Some("application/json") => vec![self.json()],
            _ => self.deltas(),
        };
        let choices =
            parts.iter().flat_map(|part| part["choices"].as_array().cloned().unwrap_or_default());
        let texts = choices.filter(|c| c["index"] == index).map(|choice| {
            let text =
                [&choice["text"], &choice["message"]["content"], &choice["delta"]["content"]];
            let found = text.iter().find_map(|value| value.as_str());
            found.unwrap_or_default().to_owned()
        });
        texts.collect()
    }
}
