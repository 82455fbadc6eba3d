//! Small HTTP servers on additional ports, such as Mooncake's bootstrap server.

use std::time::Duration;

use axum::Router;
use hyper::server::conn::http1;
use hyper_util::rt::TokioIo;
use hyper_util::service::TowerToHyperService;
use tokio::net::TcpListener;
use tokio::task::JoinSet;

/// Delay after a failed accept on a listening socket, before the next accept.
const ACCEPT_RETRY_DELAY: Duration = Duration::from_millis(50);

/// Serves HTTP/1.1 on a listener. Dropping the returned future ends the service and closes the
/// connections.
pub(super) async fn serve_http1_routes(listener: TcpListener, routes: Router) {
    let mut open = JoinSet::new();
    loop {
        let Ok((stream, _)) = listener.accept().await else {
            // Out of file descriptors; waits until others are closed.
            tokio::time::sleep(ACCEPT_RETRY_DELAY).await;
            continue;
        };
        while open.try_join_next().is_some() {}
        let service = TowerToHyperService::new(routes.clone());
        let connection = http1::Builder::new().serve_connection(TokioIo::new(stream), service);
        open.spawn(async {
            // A failed connection needs no report.
            let _ = connection.await;
        });
    }
}
