//! Listening sockets of a server.

use std::io;
use std::net::SocketAddr;

use tokio::net::{TcpListener, TcpSocket, TcpStream, UnixListener, UnixStream};

use super::error::StartError;
use vllm_sim_config::Config;

/// Maximum number of connections that wait in the kernel to be accepted.
const LISTEN_BACKLOG: u32 = 4096;

pub(super) enum ServerSocket {
    Tcp(TcpListener),
    Unix(UnixListener),
}

pub(super) struct ServerSockets {
    pub(super) http: ServerSocket,
    pub(super) grpc: Option<ServerSocket>,
}

impl ServerSockets {
    pub(super) async fn bind(config: &Config) -> Result<Self, StartError> {
        let http = ServerSocket::bind(config).await?;
        let grpc = match config.server.grpc_port {
            Some(port) => Some(ServerSocket::bind_tcp(config, port).await?),
            None => None,
        };
        Ok(Self { http, grpc })
    }

    /// Returns the TCP addresses of the HTTP and gRPC sockets; `None` for others.
    pub(super) fn tcp_addresses(&self) -> (Option<SocketAddr>, Option<SocketAddr>) {
        (self.http.tcp_address(), self.grpc.as_ref().and_then(ServerSocket::tcp_address))
    }

    pub(super) fn into_sockets(self) -> impl Iterator<Item = ServerSocket> {
        self.grpc.into_iter().chain([self.http])
    }
}

impl ServerSocket {
    pub(super) async fn bind(config: &Config) -> Result<Self, StartError> {
        if let Some(path) = &config.server.uds {
            let listen = |why| StartError::Listen { address: path.display().to_string(), why };
            // Removes a socket of an earlier run, but no other file.
            if tokio::net::UnixStream::connect(path).await.is_err() {
                use std::os::unix::fs::FileTypeExt;
                let is_socket = std::fs::metadata(path).is_ok_and(|m| m.file_type().is_socket());
                if is_socket {
                    let _ = std::fs::remove_file(path);
                }
            }
            return UnixListener::bind(path).map(Self::Unix).map_err(listen);
        }
        Self::bind_tcp(config, config.server.port).await
    }

    pub(super) async fn bind_tcp(config: &Config, port: u16) -> Result<Self, StartError> {
        let host = config.server.host.as_deref().unwrap_or("0.0.0.0");
        let failed = |why| StartError::Listen { address: format!("{host}:{port}"), why };
        let addresses = tokio::net::lookup_host((host, port)).await.map_err(failed)?;
        let mut last = io::Error::new(io::ErrorKind::AddrNotAvailable, "no such host");
        for address in addresses {
            match listen_tcp(address) {
                Ok(listener) => return Ok(Self::Tcp(listener)),
                Err(error) => last = error,
            }
        }
        Err(StartError::Listen { address: format!("{host}:{port}"), why: last })
    }

    pub(super) fn tcp_address(&self) -> Option<SocketAddr> {
        match self {
            Self::Tcp(listener) => listener.local_addr().ok(),
            Self::Unix(_) => None,
        }
    }

    pub(super) async fn accept(&self) -> io::Result<AcceptedConnection> {
        match self {
            Self::Tcp(listener) => {
                let (stream, _) = listener.accept().await?;
                stream.set_nodelay(true)?;
                Ok(AcceptedConnection::Tcp(stream))
            }
            Self::Unix(listener) => Ok(AcceptedConnection::Unix(listener.accept().await?.0)),
        }
    }
}

pub(super) enum AcceptedConnection {
    Tcp(TcpStream),
    Unix(UnixStream),
}

fn listen_tcp(address: SocketAddr) -> io::Result<TcpListener> {
    let socket = if address.is_ipv4() { TcpSocket::new_v4()? } else { TcpSocket::new_v6()? };
    socket.set_reuseaddr(true)?;
    socket.bind(address)?;
    socket.listen(LISTEN_BACKLOG)
}
