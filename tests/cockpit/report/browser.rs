//! A headless Chromium that opens a page and says what became of it.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

/// A browser, if there is one. CI must have one.
pub struct Browser(PathBuf);

/// A page as the browser shows it.
pub struct Shown {
    /// The document after its scripts have run.
    pub dom: String,
    /// Errors and violations of the content security policy.
    pub complaints: Vec<String>,
}

impl Browser {
    /// Finds the browser; says so if there is none and this is not CI.
    pub fn find() -> Option<Self> {
        let folders: Vec<PathBuf> = std::env::split_paths(&std::env::var_os("PATH").unwrap_or_default()).collect();
        let names = ["chromium", "chromium-browser", "google-chrome"];
        let found =
            names.iter().flat_map(|name| folders.iter().map(move |folder| folder.join(name))).find(|at| at.is_file());
        if found.is_none() {
            assert!(std::env::var_os("CI").is_none(), "CI needs a browser: apt-get install chromium");
            println!("not tested: there is no Chromium; install it with `apt-get install chromium`");
        }
        found.map(Self)
    }

    /// Opens a file, runs its scripts, and returns the document.
    pub fn open(&self, page: &Path, more: &[&str]) -> Shown {
        let Output { status, stdout, stderr } = self.run(page, &[&["--dump-dom"], more].concat());
        let log = String::from_utf8_lossy(&stderr).into_owned();
        assert!(status.success(), "{log}");
        let complaints = log.lines().filter(|line| line.contains("CONSOLE"));
        Shown { dom: String::from_utf8(stdout).unwrap(), complaints: complaints.map(str::to_owned).collect() }
    }

    fn run(&self, page: &Path, words: &[&str]) -> Output {
        let profile = page.with_extension("profile");
        let mut command = Command::new("timeout");
        command.arg("60").arg(&self.0).args(["--headless", "--disable-gpu", "--no-first-run", "--hide-scrollbars"]);
        // Root has no sandbox, and the page is ours.
        command.args([
            "--no-sandbox",
            "--enable-logging=stderr",
            "--virtual-time-budget=4000",
            "--window-size=1280,1600",
        ]);
        command.arg(format!("--user-data-dir={}", profile.display())).args(words);
        command.arg(format!("file://{}", page.display())).output().unwrap()
    }
}

impl Shown {
    /// Returns how many elements have exactly these classes.
    pub fn count(&self, class: &str) -> usize {
        self.dom.matches(&format!("class=\"{class}\"")).count()
    }
}

/// Draws at once: on a busy machine a headless browser may end before it has shown a frame.
const FRAMES_AT_ONCE: &str =
    "<script>window.requestAnimationFrame = (draw) => queueMicrotask(() => draw(performance.now()));</script>";

/// Writes a copy of a page without its policy, with a script that acts as its reader.
pub fn with_reader(page: &Path, script: &str) -> PathBuf {
    let html = fs::read_to_string(page).unwrap();
    let (head, rest) = html.split_once("<meta http-equiv=\"Content-Security-Policy\"").unwrap();
    let (_, rest) = rest.split_once('>').unwrap();
    let copy = page.with_file_name("read.html");
    let body = rest.replace("</body>", &format!("<script>{script}</script>\n</body>"));
    fs::write(&copy, format!("{head}{FRAMES_AT_ONCE}{body}")).unwrap();
    copy
}
