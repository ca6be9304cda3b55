//! Continues interrupted runs when the machine boots: a systemd user unit, and an
//! entry for the Windows Task Scheduler, which starts WSL.

use std::ffi::OsString;
use std::fmt::Write;
use std::path::{Path, PathBuf};

/// Variables that neither systemd nor `wsl.exe` sets: the user's folders, and what a run needs whose own environment was
/// not kept.
const VARIABLES: [&str; 11] = [
    "CUDA_HOME",
    "CUDA_PATH",
    "CUDA_VISIBLE_DEVICES",
    "DOWNSHIFT_KERNEL_LOG",
    "DOWNSHIFT_NVML_PATH",
    "DOWNSHIFT_SHARED_FOLDER",
    "DOWNSHIFT_WORKER",
    "LD_LIBRARY_PATH",
    "XDG_CACHE_HOME",
    "XDG_CONFIG_HOME",
    "XDG_STATE_HOME",
];

/// A path that cannot be written into an autostart entry.
#[derive(Debug, thiserror::Error)]
pub enum AutostartError {
    /// The path has control characters, or bytes that are not UTF-8.
    #[error("{0}: control characters and bytes that are not UTF-8 cannot be in an autostart entry; rename the folder")]
    UnfitPath(String),
    /// The system does not name the path.
    #[error("{0}")]
    Io(#[from] std::io::Error),
}

/// Everything that the two setups depend on.
pub struct Autostart {
    program: String,
    runs: String,
    distro: Option<String>,
    variables: Vec<(&'static str, String)>,
}

impl Autostart {
    /// Reads this program's path, the environment, and the folder of runs.
    ///
    /// # Errors
    /// Returns an error when a path cannot be written into an entry.
    pub fn here(runs: &Path) -> Result<Self, AutostartError> {
        Ok(Self {
            program: printable_path(std::env::current_exe()?)?,
            runs: printable_path(std::path::absolute(runs)?)?,
            distro: std::env::var("WSL_DISTRO_NAME").ok().filter(|name| !name.is_empty()),
            variables: VARIABLES.iter().filter_map(|name| Some((*name, std::env::var(name).ok()?))).collect(),
        })
    }

    /// Formats the systemd unit. The keepers it starts stay in its control group: it remains active, and
    /// stopping it lets every run save. `resume --interrupted` exits with 1 if one of the runs cannot continue. A failed
    /// unit would end the others with its control group, so 1 counts as success; the unit's log names the run.
    pub fn systemd_unit(&self) -> String {
        let mut environment = String::new();
        for (name, value) in &self.variables {
            let _ = writeln!(environment, "Environment={}", systemd(&format!("{name}={value}")));
        }
        // The program's path is taken literally; in its arguments `$` begins a variable.
        let (program, runs) = (systemd(&self.program), systemd(&self.runs));
        let argument = runs.replace('$', "$$");
        format!(
            "[Unit]\n\
             Description=Continue interrupted downshift runs\n\
             RequiresMountsFor={runs}\n\
             \n\
             [Service]\n\
             Type=oneshot\n\
             RemainAfterExit=yes\n\
             SuccessExitStatus=1\n\
             {environment}\
             ExecStart={program} resume --interrupted --everywhere --runs-dir {argument}\n\
             TimeoutStopSec=300\n\
             \n\
             [Install]\n\
             WantedBy=default.target\n"
        )
    }

    /// Formats the Windows entry. WSL stops a distribution that no Windows process uses, so `wsl.exe` waits for the runs.
    pub fn windows_task(&self) -> String {
        let distro = self.distro.as_deref().unwrap_or("DISTRO");
        let unnamed =
            if self.distro.is_some() { "" } else { "  <!-- replace DISTRO by a name that `wsl.exe -l` lists -->\n" };
        let mut words = vec!["-d".to_owned(), distro.to_owned(), "--exec".to_owned()];
        if !self.variables.is_empty() {
            words.push("/usr/bin/env".to_owned());
            words.extend(self.variables.iter().map(|(name, value)| format!("{name}={value}")));
        }
        words.push(self.program.clone());
        words.extend(["resume", "--interrupted", "--everywhere", "--wait", "--runs-dir"].map(str::to_owned));
        words.push(self.runs.clone());
        let arguments: Vec<String> = words.iter().map(|word| windows(word)).collect();
        format!(
            "<?xml version=\"1.0\"?>\n\
             <Task version=\"1.2\" xmlns=\"http://schemas.microsoft.com/windows/2004/02/mit/task\">\n{unnamed}\
         \x20 <RegistrationInfo><Description>Continue interrupted downshift runs</Description></RegistrationInfo>\n\
         \x20 <Triggers><LogonTrigger><Enabled>true</Enabled></LogonTrigger></Triggers>\n\
         \x20 <Principals>\n\
         \x20   <Principal id=\"Author\"><LogonType>InteractiveToken</LogonType><RunLevel>LeastPrivilege</RunLevel></Principal>\n\
         \x20 </Principals>\n\
         \x20 <Settings>\n\
         \x20   <MultipleInstancesPolicy>IgnoreNew</MultipleInstancesPolicy>\n\
         \x20   <DisallowStartIfOnBatteries>false</DisallowStartIfOnBatteries>\n\
         \x20   <StopIfGoingOnBatteries>false</StopIfGoingOnBatteries>\n\
         \x20   <ExecutionTimeLimit>PT0S</ExecutionTimeLimit>\n\
         \x20   <Hidden>true</Hidden>\n\
         \x20 </Settings>\n\
         \x20 <Actions Context=\"Author\">\n\
         \x20   <Exec><Command>wsl.exe</Command><Arguments>{}</Arguments></Exec>\n\
         \x20 </Actions>\n\
             </Task>",
            xml(&arguments.join(" "))
        )
    }
}

/// Converts a path to text that is valid in a unit and in XML.
fn printable_path(path: PathBuf) -> Result<String, AutostartError> {
    let unfit = |raw: OsString| AutostartError::UnfitPath(raw.to_string_lossy().into_owned());
    let path = OsString::from(path).into_string().map_err(unfit)?;
    if path.chars().any(char::is_control) {
        Err(AutostartError::UnfitPath(path.escape_default().to_string()))
    } else {
        Ok(path)
    }
}

/// Quotes a word of a unit: escapes `\` and `"`, and makes `%` literal.
fn systemd(word: &str) -> String {
    format!("\"{}\"", word.replace('\\', r"\\").replace('"', "\\\"").replace('%', "%%"))
}

/// Quotes a word of a Windows command line: backslashes are special only before a quotation mark.
fn windows(word: &str) -> String {
    let plain = |letter: char| letter.is_alphanumeric() || "_-./+,:=".contains(letter);
    if !word.is_empty() && word.chars().all(plain) {
        return word.to_owned();
    }
    let mut quoted = String::from("\"");
    let mut backslashes = 0;
    for letter in word.chars() {
        let escapes = if letter == '"' { backslashes + 1 } else { 0 };
        quoted.extend(std::iter::repeat_n('\\', escapes));
        backslashes = if letter == '\\' { backslashes + 1 } else { 0 };
        quoted.push(letter);
    }
    quoted.extend(std::iter::repeat_n('\\', backslashes));
    quoted.push('"');
    quoted
}

fn xml(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

#[cfg(test)]
mod tests {
    use super::{Autostart, systemd, windows, xml};
    use std::process::Command;

    fn start(folder: &str) -> Autostart {
        Autostart {
            program: "/bin/true".to_owned(),
            runs: folder.to_owned(),
            distro: Some("Ubuntu 24".to_owned()),
            variables: vec![("CUDA_HOME", "/opt/50% \"new\"/$x".to_owned())],
        }
    }

    #[test]
    fn words_are_quoted_for_their_reader() {
        assert_eq!(systemd(r#"/a b/50%/"c"\d"#), r#""/a b/50%%/\"c\"\\d""#);
        assert_eq!(windows("/plain/path-1"), "/plain/path-1");
        assert_eq!(windows(r#"/a b\"c"#), r#""/a b\\\"c""#);
        assert_eq!(windows(r"a b\"), r#""a b\\""#);
        assert_eq!(windows(""), "\"\"");
        assert_eq!(xml(r#"<a & "b">"#), "&lt;a &amp; &quot;b&quot;&gt;");
        let unit = start("/runs/$HOME").systemd_unit();
        assert!(unit.contains("--runs-dir \"/runs/$$HOME\"\n") && unit.contains("RequiresMountsFor=\"/runs/$HOME\"\n"));
        // One run that cannot continue must not end the others.
        assert!(unit.contains("RemainAfterExit=yes\nSuccessExitStatus=1\n") && !unit.contains("KillMode"), "{unit}");
        assert!(unit.contains("Environment=\"CUDA_HOME=/opt/50%% \\\"new\\\"/$x\"\n"), "{unit}");
        let task = start("/runs/R&D").windows_task();
        assert!(task.contains("-d &quot;Ubuntu 24&quot; --exec /usr/bin/env "), "{task}");
        assert!(
            task.contains(" --interrupted --everywhere --wait --runs-dir &quot;/runs/R&amp;D&quot;</Arguments>"),
            "{task}"
        );
    }

    #[test]
    fn the_unit_passes_the_check_of_systemd() {
        let dir = tempfile::tempdir().unwrap();
        for (number, folder) in ["/tmp/runs", "/tmp/my own's", "/tmp/50% \"new\" $x\\y"].iter().enumerate() {
            let file = dir.path().join(format!("downshift{number}.service"));
            std::fs::write(&file, start(folder).systemd_unit()).unwrap();
            let Ok(out) = Command::new("systemd-analyze").args(["--user", "verify"]).arg(&file).output() else {
                return;
            };
            let said = String::from_utf8_lossy(&out.stderr).into_owned();
            // The check also works without a running systemd; it names the file if it finds an error.
            assert!(!said.contains("downshift"), "{folder}: {said}");
        }
    }
}
