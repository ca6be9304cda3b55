//! The process of one measurement. It ends with the keeper at the latest: its stdin closes then, and it ends its command.

use crate::keeper::Input;
use crate::keeper::worker_process::end_left_behind;
use crate::protocol::line;
use crate::protocol::quality::QualityReport;
use crate::store::umask;
use rustix::process::{Pid, Signal, kill_process_group};
use std::io;
use std::process::Stdio;
use std::time::Duration;
use tokio::io::AsyncReadExt;
use tokio::process::{Child, Command};
use tokio::sync::{mpsc, oneshot};
use tokio::task::JoinHandle;
use tokio::time::{sleep, timeout};

/// Longest report.
const MOST_OUTPUT: u64 = 1 << 20;
/// Time to end after stdin was closed. The process does nothing else then.
const GRACE: Duration = Duration::from_secs(5);

/// The end of a measurement.
#[derive(Debug)]
pub enum Ended {
    /// It was made, or failed.
    Reported(QualityReport),
    /// It took longer than its limit.
    TimedOut,
    /// The keeper ended it.
    Cancelled,
}

/// A measurement under way.
#[derive(Debug)]
pub struct Measurement {
    cancel: Option<oneshot::Sender<()>>,
    task: JoinHandle<()>,
    /// Its process.
    pub pid: u32,
}

impl Measurement {
    /// Starts a measurement with these arguments, whose command gets this token. Its end is reported under `id`.
    ///
    /// # Errors
    /// Returns the system's error.
    pub fn start(
        id: u64,
        arguments: &[String],
        token: String,
        limit: Duration,
        inputs: mpsc::Sender<Input>,
    ) -> io::Result<Self> {
        let mut command = Command::new("/proc/self/exe");
        command
            .arg0("downshift-quality")
            .arg("measure-quality")
            .args(arguments)
            .args(["--token", &token])
            .envs(umask::for_child());
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null());
        let child = command.process_group(0).spawn()?;
        let pid = child.id().unwrap_or_default();
        let (cancel, cancelled) = oneshot::channel();
        let task = tokio::spawn(async move {
            let ended = follow(child, limit, cancelled).await;
            end_left_behind(token).await;
            let _ = inputs.send(Input::Measured(id, ended)).await;
        });
        Ok(Self { cancel: Some(cancel), task, pid })
    }

    /// Ends the measurement; its end is reported soon.
    pub fn cancel(&mut self) {
        if let Some(cancel) = self.cancel.take() {
            // It may have ended by itself.
            let _ = cancel.send(());
        }
    }

    /// Ends the measurement, and waits until nothing of it is left. The receiver of its end may be gone or full.
    pub async fn end(mut self) {
        self.cancel();
        // SIGKILL follows after the grace; a process that survives it cannot be waited for.
        let _ = timeout(GRACE * 3, &mut self.task).await;
        self.task.abort();
    }
}

/// Follows the process to its end.
async fn follow(mut child: Child, limit: Duration, cancelled: oneshot::Receiver<()>) -> Ended {
    let (stdin, stdout) = (child.stdin.take(), child.stdout.take());
    let mut text = Vec::new();
    let ended = tokio::select! {
        biased;
        _ = cancelled => Some(Ended::Cancelled),
        () = sleep(limit) => Some(Ended::TimedOut),
        () = read_report(stdout, &mut text) => None,
    };
    drop(stdin);
    let exit = timeout(GRACE, child.wait()).await;
    if exit.is_err() {
        if let Some(group) = child.id().and_then(|pid| Pid::from_raw(pid.cast_signed())) {
            let _ = kill_process_group(group, Signal::KILL);
        }
        let _ = timeout(GRACE, child.wait()).await;
    }
    ended.unwrap_or_else(|| {
        let report = line::decode::<QualityReport>(&String::from_utf8_lossy(&text));
        Ended::Reported(report.unwrap_or_else(|| {
            let how = match exit {
                Ok(Ok(status)) => format!("its process ended without a report: {status}"),
                _ => "its process ended without a report".to_owned(),
            };
            QualityReport::failed(how)
        }))
    })
}

async fn read_report(stdout: Option<tokio::process::ChildStdout>, text: &mut Vec<u8>) {
    if let Some(stdout) = stdout {
        let _ = stdout.take(MOST_OUTPUT).read_to_end(text).await;
    }
}
