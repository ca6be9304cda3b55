//! Desktop notifications: `notify-send` on Linux, a Windows toast under WSL2.
//!
//! The text goes to PowerShell on stdin, never into its command line: log output must not be able to
//! become a command.

use super::{Message, NotifyError};
use crate::protocol::worker::Level;
use crate::untrusted::child::wait_within;
use crate::wsl::is_wsl;
use std::io::Write;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

const POWERSHELL: &str = "/mnt/c/Windows/System32/WindowsPowerShell/v1.0/powershell.exe";
const TOAST_PROGRAM: &str = "powershell.exe";
/// Time limit; PowerShell sometimes takes seconds to start.
const LIMIT: Duration = Duration::from_secs(20);
/// Script that reads title and text from stdin, one line each, and shows them.
const TOAST: &str = "\
[Console]::InputEncoding = [Text.Encoding]::UTF8
$title = [Console]::In.ReadLine(); $text = [Console]::In.ReadLine()
[void][Windows.UI.Notifications.ToastNotificationManager, Windows.UI.Notifications, ContentType = WindowsRuntime]
$kind = [Windows.UI.Notifications.ToastTemplateType]::ToastText02
$xml = [Windows.UI.Notifications.ToastNotificationManager]::GetTemplateContent($kind)
$nodes = $xml.GetElementsByTagName('text')
[void]$nodes.Item(0).AppendChild($xml.CreateTextNode($title))
[void]$nodes.Item(1).AppendChild($xml.CreateTextNode($text))
$toast = [Windows.UI.Notifications.ToastNotification]::new($xml)
$id = '{1AC14E77-02E7-4E5D-B744-2EB1AE5198B7}\\WindowsPowerShell\\v1.0\\powershell.exe'
[Windows.UI.Notifications.ToastNotificationManager]::CreateToastNotifier($id).Show($toast)
";

/// Shows a notification.
///
/// # Errors
/// Returns an error when it cannot be shown, with the reason.
pub fn show_notification(message: &Message) -> Result<(), NotifyError> {
    if is_wsl() { show_toast(message) } else { notify_send(message) }
}

/// Returns the missing requirement, if any.
#[must_use]
pub fn missing_program() -> Option<NotifyError> {
    if is_wsl() {
        return (!Path::new(POWERSHELL).exists()).then_some(NotifyError::ProgramMissing(TOAST_PROGRAM));
    }
    let path = std::env::var_os("PATH").unwrap_or_default();
    let found = std::env::split_paths(&path).any(|folder| folder.join("notify-send").is_file());
    (!found).then_some(NotifyError::ProgramMissing("notify-send"))
}

fn notify_send(message: &Message) -> Result<(), NotifyError> {
    let urgency = if message.level == Level::Error { "critical" } else { "normal" };
    let child = Command::new("notify-send")
        .args(["--app-name=downshift", "--urgency", urgency, "--", &message.title, &message.text])
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .map_err(|error| NotifyError::from_io("notify-send", &error))?;
    wait_for_exit(child, "notify-send")
}

fn show_toast(message: &Message) -> Result<(), NotifyError> {
    let mut command = Command::new(POWERSHELL);
    command.args(["-NoProfile", "-NonInteractive", "-EncodedCommand", &encode_script(TOAST)]);
    if let Some(socket) = living_interop() {
        command.env("WSL_INTEROP", socket);
    }
    if Path::new("/mnt/c/Windows").is_dir() {
        command.current_dir("/mnt/c/Windows");
    }
    command.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::null());
    let mut child = command.spawn().map_err(|error| NotifyError::from_io(TOAST_PROGRAM, &error))?;
    if let Some(mut stdin) = child.stdin.take() {
        let line = |text: &str| text.replace(['\r', '\n'], " ");
        let _ = writeln!(stdin, "{}\n{}", line(&message.title), line(&message.text));
    }
    wait_for_exit(child, TOAST_PROGRAM)
}

/// A long-lived tmux server keeps the socket of the console that started it, which may be gone. Returns
/// the newest socket that exists in that case.
fn living_interop() -> Option<std::path::PathBuf> {
    let own = std::env::var_os("WSL_INTEROP").map(std::path::PathBuf::from).filter(|path| path.exists());
    own.or_else(|| {
        let sockets = std::fs::read_dir("/run/WSL").ok()?.flatten().map(|entry| entry.path());
        let sockets = sockets.filter(|path| path.to_string_lossy().ends_with("_interop"));
        sockets.max_by_key(|path| path.metadata().and_then(|about| about.modified()).ok())
    })
}

fn wait_for_exit(mut child: Child, program: &'static str) -> Result<(), NotifyError> {
    match wait_within(&mut child, LIMIT) {
        Ok(Some(status)) if status.success() => Ok(()),
        Ok(Some(status)) => Err(NotifyError::ProgramFailed { program, status: status.to_string() }),
        Ok(None) => Err(NotifyError::ProgramSilent { program, seconds: LIMIT.as_secs() }),
        Err(error) => Err(NotifyError::from_io(program, &error)),
    }
}

/// Encodes a script for PowerShell's command line: base64 of UTF-16.
fn encode_script(script: &str) -> String {
    const DIGITS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let bytes: Vec<u8> = script.encode_utf16().flat_map(u16::to_le_bytes).collect();
    let mut text = String::with_capacity(bytes.len() * 4 / 3 + 4);
    for part in bytes.chunks(3) {
        let three =
            u32::from_be_bytes([0, part[0], part.get(1).copied().unwrap_or(0), part.get(2).copied().unwrap_or(0)]);
        for digit in 0..4 {
            let index = (three >> (18 - 6 * digit)) & 63;
            text.push(if digit <= part.len() { char::from(DIGITS[index as usize]) } else { '=' });
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::encode_script;

    #[test]
    fn scripts_are_encoded_as_powershell_reads_them() {
        assert_eq!(encode_script(""), "");
        assert_eq!(encode_script("a"), "YQA=");
        assert_eq!(encode_script("dir"), "ZABpAHIA");
        assert_eq!(encode_script("é"), "6QA=");
        assert_eq!(encode_script("ab"), "YQBiAA==");
    }
}
