//! Small servers beside the main one.

use std::time::Duration;

use axum::Router;
use hyper::server::conn::http1;
use hyper_util::rt::TokioIo;
use hyper_util::service::TowerToHyperService;
use tokio::net::TcpListener;
use tokio::task::JoinSet;

/// Pause after a connection could not be accepted.
const RETRY: Duration = Duration::from_millis(50);

/// Answers over HTTP/1.1 until it is dropped, and its connections with it.
pub(super) async fn serve(listener: TcpListener, routes: Router) {
    let mut open = JoinSet::new();
    loop {
        let Ok((stream, _)) = listener.accept().await else {
            // Out of sockets: others must end first.
            tokio::time::sleep(RETRY).await;
            continue;
        };
        while open.try_join_next().is_some() {}
        let service = TowerToHyperService::new(routes.clone());
        let connection = http1::Builder::new().serve_connection(TokioIo::new(stream), service);
        open.spawn(async {
            // A client that goes away is no news.
            let _ = connection.await;
        });
    }
}
