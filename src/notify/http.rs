//! Sends one HTTP request, with retries where they may help. Errors never contain the URL, which may be a secret.

use super::webhook::Post;
use std::thread;
use std::time::Duration;
use ureq::{Agent, Error};

/// Maximum attempts, the first one included.
const TRIES: u32 = 4;
/// Upper bound on the pause a server may ask for.
const LONGEST_PAUSE: Duration = Duration::from_mins(1);

/// Creates an HTTP client.
pub fn agent() -> Agent {
    let config = Agent::config_builder()
        .timeout_global(Some(Duration::from_secs(10)))
        .http_status_as_error(false)
        .max_redirects(3)
        .user_agent(concat!("downshift/", env!("CARGO_PKG_VERSION")));
    config.build().into()
}

/// Sends a request; waits 1, 2 and 4 times `pause` between attempts, or as long as the server asks.
///
/// # Errors
/// Returns an error when every attempt fails: that of the last one.
pub fn send(agent: &Agent, post: &Post, pause: Duration) -> Result<(), String> {
    let mut wait = pause;
    for attempt in 1.. {
        let (why, asked) = match once(agent, post) {
            Ok(()) => return Ok(()),
            Err(failed) if failed.for_good || attempt == TRIES => return Err(failed.why),
            Err(failed) => (failed.why, failed.retry_after),
        };
        let _ = why;
        thread::sleep(asked.unwrap_or(wait).min(LONGEST_PAUSE));
        wait *= 2;
    }
    Ok(())
}

struct Failed {
    why: String,
    for_good: bool,
    retry_after: Option<Duration>,
}

fn once(agent: &Agent, post: &Post) -> Result<(), Failed> {
    let mut request = agent.post(&post.url);
    for (name, value) in &post.headers {
        request = request.header(*name, value);
    }
    let response = match request.send(&post.body) {
        Ok(response) => response,
        Err(error) => return Err(Failed { for_good: for_good(&error), why: words(&error), retry_after: None }),
    };
    let status = response.status().as_u16();
    if response.status().is_success() {
        return Ok(());
    }
    let header = |name: &str| response.headers().get(name).and_then(|value| value.to_str().ok());
    let retry_after = header("retry-after").and_then(|text| text.trim().parse().ok()).map(Duration::from_secs);
    let again = status == 429 || status == 408 || status >= 500;
    Err(Failed { why: format!("the server answered {status}"), for_good: !again, retry_after })
}

/// Reports whether a retry would fail the same way.
fn for_good(error: &Error) -> bool {
    matches!(error, Error::BadUri(_) | Error::Http(_) | Error::TooManyRedirects)
}

/// Describes the error without the URL.
fn words(error: &Error) -> String {
    match error {
        Error::Timeout(_) => "no answer in time".to_owned(),
        Error::HostNotFound => "the host was not found".to_owned(),
        Error::ConnectionFailed => "no connection".to_owned(),
        Error::Io(error) => format!("no connection ({})", error.kind()),
        Error::BadUri(_) => "this is no address".to_owned(),
        Error::Tls(_) | Error::Rustls(_) => "the connection is not secure".to_owned(),
        Error::TooManyRedirects => "too many redirects".to_owned(),
        _ => "the request failed".to_owned(),
    }
}
