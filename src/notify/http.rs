//! Sends one HTTP request, with retries where they may help. Errors never contain the URL, which may be a secret.

use super::error::{NotifyError, Unreachable};
use super::webhook::Post;
use crate::untrusted::text;
use std::thread;
use std::time::Duration;
use ureq::{Agent, Error};

/// Maximum attempts, the first one included.
const TRIES: u32 = 4;
/// Upper bound on the pause a server may ask for.
const LONGEST_PAUSE: Duration = Duration::from_mins(1);

/// Longest name of a server in a message.
const LONGEST_SERVER: usize = 100;

/// Creates an HTTP client.
pub fn http_agent() -> Agent {
    let config = Agent::config_builder()
        .timeout_global(Some(Duration::from_secs(10)))
        .http_status_as_error(false)
        // A redirected POST becomes a GET without the message, at an address that nobody approved.
        .max_redirects(0)
        .user_agent(concat!("downshift/", env!("CARGO_PKG_VERSION")));
    config.build().into()
}

/// Sends a request; waits 1, 2 and 4 times `pause` between attempts, or as long as the server asks.
///
/// # Errors
/// Returns an error when every attempt fails: that of the last one.
pub fn send_post(agent: &Agent, post: &Post, pause: Duration) -> Result<(), NotifyError> {
    let mut wait = pause;
    for _ in 1..TRIES {
        match send_once(agent, post) {
            Err(Failed { error, retry: Retry::Never }) => return Err(error),
            Err(Failed { retry: Retry::After(asked), .. }) => thread::sleep(asked.min(LONGEST_PAUSE)),
            Err(Failed { retry: Retry::Later, .. }) => thread::sleep(wait.min(LONGEST_PAUSE)),
            Ok(()) => return Ok(()),
        }
        wait *= 2;
    }
    send_once(agent, post).map_err(|failed| failed.error)
}

struct Failed {
    error: NotifyError,
    retry: Retry,
}

/// Whether a retry may succeed.
enum Retry {
    /// It would fail the same way.
    Never,
    /// It may.
    Later,
    /// It may after this time, says the server.
    After(Duration),
}

fn send_once(agent: &Agent, post: &Post) -> Result<(), Failed> {
    let mut request = agent.post(&post.url);
    for (name, value) in &post.headers {
        request = request.header(*name, value);
    }
    let response = request.send(&post.body).map_err(|error| {
        let lasting = matches!(error, Error::BadUri(_) | Error::Http(_));
        let retry = if lasting { Retry::Never } else { Retry::Later };
        Failed { error: NotifyError::Unreachable(classify_error(&error)), retry }
    })?;
    let status = response.status().as_u16();
    if response.status().is_success() {
        return Ok(());
    }
    if response.status().is_redirection() {
        let target = response.headers().get("location").and_then(|place| place.to_str().ok());
        let error = NotifyError::Redirected(target.map(server_of).unwrap_or_default());
        return Err(Failed { error, retry: Retry::Never });
    }
    let header = |name: &str| response.headers().get(name).and_then(|value| value.to_str().ok());
    let asked = header("retry-after").and_then(|text| text.trim().parse().ok()).map(Duration::from_secs);
    let may_pass = status == 429 || status == 408 || status >= 500;
    let retry = if may_pass { asked.map_or(Retry::Later, Retry::After) } else { Retry::Never };
    Err(Failed { error: NotifyError::Refused(status), retry })
}

/// Returns the server that a redirect leads to, without the rest, which may hold a secret; empty for the same server.
fn server_of(location: &str) -> String {
    let Some((scheme, rest)) = location.split_once("://") else { return String::new() };
    let server = rest.split(['/', '?', '#']).next().unwrap_or_default();
    let server = server.rsplit('@').next().unwrap_or_default();
    text::clip_line(&format!("{scheme}://{server}"), LONGEST_SERVER)
}

/// Classifies an error without its URL.
fn classify_error(error: &Error) -> Unreachable {
    match error {
        Error::Timeout(_) => Unreachable::Timeout,
        Error::HostNotFound => Unreachable::HostNotFound,
        Error::ConnectionFailed => Unreachable::NoConnection,
        Error::Io(error) => Unreachable::Broken(error.kind()),
        Error::BadUri(_) => Unreachable::BadUrl,
        Error::Tls(_) | Error::Rustls(_) => Unreachable::NotSecure,
        _ => Unreachable::Other,
    }
}
