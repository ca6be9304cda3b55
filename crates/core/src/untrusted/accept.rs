//! Accepts connections, and goes on after an error.

use std::time::Duration;
use tokio::net::{UnixListener, UnixStream};

/// Time between two attempts after an error.
const PAUSE: Duration = Duration::from_millis(100);

/// Waits for the next connection.
pub async fn accept(listener: &UnixListener) -> UnixStream {
    loop {
        match listener.accept().await {
            Ok((stream, _)) => return stream,
            // Such as too many open files: no event tells when that is over.
            Err(_) => tokio::time::sleep(PAUSE).await,
        }
    }
}
