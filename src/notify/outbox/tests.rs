//! Sends messages to a real server on a local port.

use super::{Channel, Outbox};
use crate::config::integrations::{Least, Notify, Text, Webhook, WebhookKind};
use crate::notify::webhook::Address;
use crate::notify::{Message, NotifyError};
use crate::protocol::worker::Level;
use serde_json::Value;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpListener;
use std::sync::mpsc::{self, Receiver};
use std::thread;
use std::time::Duration;

const LIMIT: Duration = Duration::from_secs(20);
const PAUSE: Duration = Duration::from_millis(5);

/// A received request: request line, headers, body.
struct Heard {
    line: String,
    headers: String,
    body: String,
}

/// Starts a server that gives these answers, one per request.
fn server(answers: &'static [&'static str]) -> (String, Receiver<Heard>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let (tell, heard) = mpsc::channel();
    thread::spawn(move || {
        for answer in answers {
            let (mut stream, _) = listener.accept().unwrap();
            let mut reader = BufReader::new(stream.try_clone().unwrap());
            let (mut line, mut headers) = (String::new(), String::new());
            reader.read_line(&mut line).unwrap();
            while !headers.ends_with("\r\n\r\n") {
                reader.read_line(&mut headers).unwrap();
            }
            let lower = headers.to_lowercase();
            let length =
                lower.lines().find_map(|line| line.strip_prefix("content-length: ")?.parse().ok()).unwrap_or(0);
            let mut body = vec![0; length];
            reader.read_exact(&mut body).unwrap();
            let body = String::from_utf8(body).unwrap();
            tell.send(Heard { line: line.trim().to_owned(), headers: lower, body }).unwrap();
            write!(stream, "HTTP/1.1 {answer}\r\nContent-Length: 0\r\nConnection: close\r\n\r\n").unwrap();
        }
    });
    (url, heard)
}

fn message(level: Level) -> Message {
    Message {
        run: "digits-1".into(),
        level,
        title: "digits-1: needs attention".into(),
        text: "GPU lost → \"quoted\"".into(),
    }
}

/// Builds a channel whose secrets are in a file.
fn channel(kind: WebhookKind, url: &str, token: Option<&str>) -> Channel {
    let dir = tempfile::tempdir().unwrap();
    let secret = |name: &str, text: &str| {
        use std::os::unix::fs::PermissionsExt;
        let path = dir.path().join(name);
        std::fs::write(&path, text).unwrap();
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o600)).unwrap();
        Text::File(path)
    };
    let hook = Webhook {
        kind,
        url: Some(secret("url", url)),
        token: token.map(|token| secret("token", token)),
        chat: Some("42".into()),
    };
    Channel::Webhook(Address::from_webhook(&hook).map(Box::new))
}

#[test]
fn each_kind_gets_what_it_understands() {
    let send = |kind, token, path: &str| {
        let (url, heard) = server(&["200 OK"]);
        channel(kind, &format!("{url}{path}"), token).send_with(&message(Level::Error), PAUSE).unwrap();
        heard.recv_timeout(LIMIT).unwrap()
    };
    let json = send(WebhookKind::Json, Some("tok"), "/in");
    let body: Value = serde_json::from_str(&json.body).unwrap();
    assert_eq!((json.line.as_str(), body["run"].as_str()), ("POST /in HTTP/1.1", Some("digits-1")));
    assert_eq!((body["level"].as_str(), body["text"].as_str()), (Some("error"), Some("GPU lost → \"quoted\"")));
    assert!(json.headers.contains("authorization: bearer tok"));

    let telegram = send(WebhookKind::Telegram, Some("1:AB"), "");
    let body: Value = serde_json::from_str(&telegram.body).unwrap();
    assert_eq!((telegram.line.as_str(), body["chat_id"].as_str()), ("POST /bot1:AB/sendMessage HTTP/1.1", Some("42")));
    assert!(body["text"].as_str().unwrap().contains("needs attention\nGPU lost"));

    let discord = send(WebhookKind::Discord, None, "/api/webhooks/1/x");
    let body: Value = serde_json::from_str(&discord.body).unwrap();
    assert!(body["content"].as_str().unwrap().contains("GPU lost"));
    assert_eq!(body["allowed_mentions"]["parse"], serde_json::json!([]));

    let ntfy = send(WebhookKind::Ntfy, Some("tk_1"), "/topic");
    assert_eq!((ntfy.line.as_str(), ntfy.body.as_str()), ("POST /topic HTTP/1.1", "GPU lost → \"quoted\""));
    assert!(ntfy.headers.contains("title: digits-1: needs attention") && ntfy.headers.contains("priority: 5"));
}

#[test]
fn a_busy_server_is_tried_again_and_a_refusal_is_not() {
    let (url, heard) = server(&["503 Busy", "429 Slow down\r\nRetry-After: 0", "204 No Content"]);
    channel(WebhookKind::Json, &url, None).send_with(&message(Level::Warn), PAUSE).unwrap();
    assert_eq!(heard.iter().count(), 3);

    let (url, heard) = server(&["403 Forbidden", "200 OK"]);
    let refused = channel(WebhookKind::Json, &url, None).send_with(&message(Level::Warn), PAUSE).unwrap_err();
    assert_eq!(refused, NotifyError::Refused(403));
    assert_eq!(heard.try_iter().count(), 1);

    let (url, heard) = server(&["500 x", "500 x", "500 x", "500 x"]);
    let refused = channel(WebhookKind::Json, &url, None).send_with(&message(Level::Warn), PAUSE).unwrap_err();
    assert_eq!((refused, heard.iter().count()), (NotifyError::Refused(500), 4));
}

#[test]
fn failures_are_reported_once_and_reveal_no_secret() {
    // A port without a listener.
    let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let url = format!("http://127.0.0.1:{port}/bots3cret");
    let mut outbox =
        Outbox::with_channels(vec![channel(WebhookKind::Telegram, &url, Some("s3cret"))], Least::Warn, PAUSE);
    outbox.post(message(Level::Error));
    outbox.post(message(Level::Error));
    assert!(outbox.finish(LIMIT), "the queue is empty in the end");
    let troubles = outbox.troubles();
    assert_eq!(troubles.len(), 1);
    assert!(
        troubles[0].starts_with("notification by telegram failed") && !troubles[0].contains("s3cret"),
        "{troubles:?}"
    );
}

#[test]
fn lower_levels_are_not_sent_and_the_queue_never_blocks() {
    let (url, heard) = server(&["200 OK", "200 OK"]);
    let mut outbox = Outbox::with_channels(vec![channel(WebhookKind::Ntfy, &url, None)], Least::Warn, PAUSE);
    outbox.post(message(Level::Info));
    outbox.post(message(Level::Warn));
    assert!(outbox.finish(LIMIT));
    outbox.post(message(Level::Error));
    assert_eq!(heard.try_iter().count(), 1);
}

#[test]
fn a_missing_secret_fails_only_its_channel() {
    let hook = Webhook {
        kind: WebhookKind::Ntfy,
        url: Some(Text::Env("DOWNSHIFT_NO_SUCH_VARIABLE".into())),
        token: None,
        chat: None,
    };
    let settings = Notify { bell: false, desktop: false, webhooks: vec![hook], ..Notify::default() };
    let channels = super::build_channels(&settings);
    let error = channels[0].send(&message(Level::Warn)).unwrap_err();
    let missing = NotifyError::VariableMissing("DOWNSHIFT_NO_SUCH_VARIABLE".to_owned());
    assert_eq!(error, NotifyError::Webhook { kind: "ntfy", error: Box::new(missing) });
}

#[test]
fn a_redirect_is_not_followed_and_its_server_is_named_without_secrets() {
    for answer in [
        "301 Moved Permanently\r\nLocation: https://me:pw@other.example/hook/S3CRET?key=1",
        "302 Found\r\nLocation: https://other.example/hook/S3CRET",
        "307 Temporary Redirect\r\nLocation: https://other.example?S3CRET",
    ] {
        let answers: &'static [&'static str] = Box::leak(Box::new([answer]));
        let (url, heard) = server(answers);
        let error = channel(WebhookKind::Json, &url, None).send_with(&message(Level::Error), PAUSE).unwrap_err();
        let said = error.to_string();
        assert!(said.contains("redirects to https://other.example, which was not contacted"), "{said}");
        assert!(!said.contains("S3CRET") && !said.contains("pw"), "{said}");
        assert!(heard.recv_timeout(LIMIT).unwrap().line.starts_with("POST"));
        assert!(heard.recv_timeout(LIMIT).is_err(), "no second request: the server is gone");
    }
    let (url, _heard) = server(&["303 See Other\r\nLocation: /elsewhere"]);
    let error = channel(WebhookKind::Json, &url, None).send_with(&message(Level::Error), PAUSE).unwrap_err();
    assert!(error.to_string().contains("redirects to another path"), "{error}");
}
