//! A short talk with a keeper: one request, one answer.

use super::Failure;
use crate::protocol::control::{Request, Update};
use crate::protocol::line;
use crate::store::lock::living_owner;
use crate::store::run_dir::RunDir;
use crate::untrusted::file;
use std::io::{BufRead, BufReader, ErrorKind, Write};
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

/// A keeper answers at once; one that does not within this time is stuck.
const PATIENCE: Duration = Duration::from_secs(5);

/// Asks the keeper of a run. Returns its answer where it accepts.
///
/// # Errors
/// When no keeper lives, or it refuses.
pub fn ask(run: &RunDir, request: &Request) -> Result<String, Failure> {
    let stuck = |error: std::io::Error| Failure::new(1, silence(run, &error));
    let mut stream = UnixStream::connect(run.socket()).map_err(|_| absent(run))?;
    stream.set_read_timeout(Some(PATIENCE)).map_err(stuck)?;
    stream.set_write_timeout(Some(PATIENCE)).map_err(stuck)?;
    stream.write_all(line::encode(request)?.as_bytes()).map_err(stuck)?;
    for text in BufReader::new(stream).lines() {
        match line::decode::<Update>(&text.map_err(stuck)?) {
            Some(Update::Reply { accepted: true, message }) => return Ok(message),
            Some(Update::Reply { accepted: false, message }) => return Err(Failure::new(1, message)),
            _ => {}
        }
    }
    Err(Failure::new(1, format!("the keeper of {} ended while it was asked", run.name())))
}

/// Why a keeper that is there says nothing.
fn silence(run: &RunDir, error: &std::io::Error) -> String {
    let (name, waited) = (run.name(), PATIENCE.as_secs());
    if !matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) {
        return format!("the keeper of {name} does not answer: {error}");
    }
    let pid = living_owner(&run.file("keeper.lock")).map_or_else(|| "PID".to_owned(), |owner| owner.pid.to_string());
    format!(
        "the keeper of {name}, process {pid}, has not answered for {waited} s; if it is suspended (state T in `ps {pid}`), \
         `kill -CONT {pid}` wakes it"
    )
}

fn absent(run: &RunDir) -> Failure {
    let name = run.name();
    Failure::new(
        1,
        format!(
            "no keeper watches over {name}; `{}` starts it again, `{}` tells how it ended",
            run.command("resume"),
            run.command("status")
        ),
    )
}

/// Whether a keeper lives and listens.
pub fn keeper_listens(run: &RunDir) -> bool {
    living_owner(&run.file("keeper.lock")).is_some() && UnixStream::connect(run.socket()).is_ok()
}

/// Waits until a keeper that was just started listens.
///
/// # Errors
/// When it ends or stays away: then its log says why.
pub fn wait_for_keeper(run: &RunDir) -> Result<(), Failure> {
    let deadline = Instant::now() + Duration::from_secs(10);
    while !keeper_listens(run) {
        if Instant::now() >= deadline {
            let log = file::tail(&run.file("keeper.log"), 1 << 16).unwrap_or_default();
            let last: Vec<&str> = log.lines().rev().take(5).collect();
            let said = last.into_iter().rev().collect::<Vec<_>>().join("\n  ");
            return Err(Failure::new(
                1,
                format!("the keeper did not start; the end of {}:\n  {said}", run.file("keeper.log").display()),
            ));
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    Ok(())
}
