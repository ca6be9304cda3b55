//! `doctor --autostart`: continues interrupted runs when the machine boots: a systemd user unit, and an
//! entry for the Windows Task Scheduler, which starts WSL.

use crate::cli::{Outcome, line};
use clap::ValueEnum;
use std::ffi::OsString;
use std::fmt::Write;
use std::path::{Path, PathBuf};

/// Variables that a run may depend on and that neither systemd nor `wsl.exe` sets.
const VARIABLES: [&str; 7] = [
    "CUDA_HOME",
    "CUDA_PATH",
    "CUDA_VISIBLE_DEVICES",
    "DOWNSHIFT_KERNEL_LOG",
    "DOWNSHIFT_NVML_PATH",
    "DOWNSHIFT_WORKER",
    "LD_LIBRARY_PATH",
];

/// The setups to print.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Autostart {
    /// Both, with how to install them
    Both,
    /// The systemd unit alone
    Systemd,
    /// The Windows entry alone
    Windows,
}

/// Everything that the two setups depend on.
struct Start {
    program: String,
    runs: String,
    distro: Option<String>,
    variables: Vec<(&'static str, String)>,
}

pub fn print(what: Autostart, runs: &Path) -> Outcome {
    let start = Start {
        program: text(std::env::current_exe()?)?,
        runs: text(std::path::absolute(runs)?)?,
        distro: std::env::var("WSL_DISTRO_NAME").ok().filter(|name| !name.is_empty()),
        variables: VARIABLES.iter().filter_map(|name| Some((*name, std::env::var(name).ok()?))).collect(),
    };
    if what != Autostart::Windows {
        if what == Autostart::Both {
            line!("# Linux: save this as ~/.config/systemd/user/downshift.service, then");
            line!("#   systemctl --user enable downshift.service && loginctl enable-linger");
            line!("# (`downshift doctor --autostart systemd` prints it alone.)");
            line!("");
        }
        line!("{}", unit(&start));
    }
    if what != Autostart::Systemd {
        if what == Autostart::Both {
            line!("# Windows with WSL2: save the rest as downshift.xml, then in PowerShell");
            line!("#   Register-ScheduledTask -TaskName downshift -Xml (Get-Content -Raw downshift.xml)");
            line!("# (`downshift doctor --autostart windows` prints it alone.)");
            line!("");
        }
        line!("{}", task(&start));
    }
    Ok(0)
}

/// Converts a path to text that is valid in a unit and in XML.
fn text(path: PathBuf) -> Result<String, crate::cli::Failure> {
    let unfit = |shown: String| {
        crate::cli::Failure::new(
            2,
            format!(
                "{shown}: control characters and bytes that are not UTF-8 cannot be in an autostart entry; rename the folder"
            ),
        )
    };
    let path = OsString::from(path).into_string().map_err(|raw| unfit(raw.to_string_lossy().into_owned()))?;
    if path.chars().any(char::is_control) { Err(unfit(path.escape_default().to_string())) } else { Ok(path) }
}

/// Formats the systemd unit. The keepers it starts stay in its control group: it remains active, and
/// stopping it lets every run save. `resume --interrupted` exits with 1 if one of the runs cannot go on. A failed
/// unit would end the others with its control group, so 1 counts as success; the unit's log names the run.
fn unit(start: &Start) -> String {
    let mut environment = String::new();
    for (name, value) in &start.variables {
        let _ = writeln!(environment, "Environment={}", systemd(&format!("{name}={value}")));
    }
    // The program's path is taken literally; in its arguments `$` begins a variable.
    let (program, runs) = (systemd(&start.program), systemd(&start.runs));
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
         ExecStart={program} resume --interrupted --runs-dir {argument}\n\
         TimeoutStopSec=300\n\
         \n\
         [Install]\n\
         WantedBy=default.target\n"
    )
}

/// Quotes a word of a unit: escapes `\` and `"`, and makes `%` literal.
fn systemd(word: &str) -> String {
    format!("\"{}\"", word.replace('\\', r"\\").replace('"', "\\\"").replace('%', "%%"))
}

/// Formats the Windows entry. WSL stops a distribution that no Windows process uses, so `wsl.exe` waits for the runs.
fn task(start: &Start) -> String {
    let distro = start.distro.as_deref().unwrap_or("DISTRO");
    let unnamed =
        if start.distro.is_some() { "" } else { "  <!-- replace DISTRO by a name that `wsl.exe -l` lists -->\n" };
    let mut words = vec!["-d".to_owned(), distro.to_owned(), "--exec".to_owned()];
    if !start.variables.is_empty() {
        words.push("/usr/bin/env".to_owned());
        words.extend(start.variables.iter().map(|(name, value)| format!("{name}={value}")));
    }
    words.push(start.program.clone());
    words.extend(["resume", "--interrupted", "--wait", "--runs-dir"].map(str::to_owned));
    words.push(start.runs.clone());
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
    use super::{Start, systemd, task, unit, windows, xml};
    use std::process::Command;

    fn start(folder: &str) -> Start {
        Start {
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
        let unit = unit(&start("/runs/$HOME"));
        assert!(unit.contains("--runs-dir \"/runs/$$HOME\"\n") && unit.contains("RequiresMountsFor=\"/runs/$HOME\"\n"));
        // One run that cannot go on must not end the others.
        assert!(unit.contains("RemainAfterExit=yes\nSuccessExitStatus=1\n") && !unit.contains("KillMode"), "{unit}");
        assert!(unit.contains("Environment=\"CUDA_HOME=/opt/50%% \\\"new\\\"/$x\"\n"), "{unit}");
        let task = task(&start("/runs/R&D"));
        assert!(task.contains("-d &quot;Ubuntu 24&quot; --exec /usr/bin/env "), "{task}");
        assert!(task.contains(" --interrupted --wait --runs-dir &quot;/runs/R&amp;D&quot;</Arguments>"), "{task}");
    }

    #[test]
    fn the_unit_passes_the_check_of_systemd() {
        let dir = tempfile::tempdir().unwrap();
        for (number, folder) in ["/tmp/runs", "/tmp/my own's", "/tmp/50% \"new\" $x\\y"].iter().enumerate() {
            let file = dir.path().join(format!("downshift{number}.service"));
            std::fs::write(&file, unit(&start(folder))).unwrap();
            let Ok(out) = Command::new("systemd-analyze").args(["--user", "verify"]).arg(&file).output() else {
                return;
            };
            let said = String::from_utf8_lossy(&out.stderr).into_owned();
            // The check also works without a running systemd; it names the file if it finds an error.
            assert!(!said.contains("downshift"), "{folder}: {said}");
        }
    }
}
