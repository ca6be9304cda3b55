//! The Python environment that a command uses, read from its files: no Python is started.
//!
//! ```text
//! command ─ interpreter ─▶ bin/python ─▶ pyvenv.cfg, lib/python3.N ─▶ site-packages ─▶ *.dist-info, torch/version.py
//! ```

mod interpreter;
mod packages;

pub use interpreter::InterpreterError;
pub use packages::{Package, TorchBuild};

use crate::config::command::first_launch;
use crate::config::run::Run;
use crate::untrusted::file::{Limit, read_text};
use interpreter::{Search, find_interpreter};
use std::collections::BTreeMap;
use std::fmt::Write;
use std::fs;
use std::path::{Path, PathBuf};

/// A Python installation or virtual environment.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PythonEnvironment {
    /// The interpreter.
    pub interpreter: PathBuf,
    /// Its version, as far as the files tell.
    pub version: Option<String>,
    /// Its installed packages, by normalised name.
    pub packages: BTreeMap<String, Package>,
    /// How its PyTorch was built.
    pub torch: Option<TorchBuild>,
}

impl PythonEnvironment {
    /// Finds the environment of a run that starts a command; `None` for a run that starts none.
    ///
    /// # Errors
    /// Returns an error when the interpreter cannot be found without running anything.
    pub fn of_run(run: &Run) -> Option<Result<Self, InterpreterError>> {
        let launch = first_launch(run, 0, 1)?;
        let search = Search { directory: &launch.directory, variables: &launch.environment };
        Some(find_interpreter(&launch.argv, &search).map(|interpreter| Self::at(&interpreter)))
    }

    /// Reads the environment of an interpreter.
    fn at(interpreter: &Path) -> Self {
        let layout = Layout::of(interpreter);
        let packages = packages::installed(&layout.packages);
        let torch = layout.packages.iter().find_map(|folder| packages::torch_build(folder));
        Self { interpreter: interpreter.to_owned(), version: layout.version, packages, torch }
    }

    /// Returns the version of a package.
    pub fn version_of(&self, package: &str) -> Option<&str> {
        self.packages.get(package).map(|package| package.version.as_str())
    }

    /// Describes the environment for a bug report: the interpreter, PyTorch's build, and every package.
    pub fn describe(&self) -> String {
        let version = self.version.as_deref().unwrap_or("unknown version");
        let mut text = format!("python: {version}, {}\n", self.interpreter.display());
        if let Some(torch) = &self.torch {
            let _ = writeln!(text, "torch: {torch}");
        }
        for package in self.packages.values() {
            let _ = writeln!(text, "{}=={}", package.name, package.version);
        }
        text
    }
}

/// Where an installation keeps its packages.
#[derive(Debug, Default)]
struct Layout {
    version: Option<String>,
    packages: Vec<PathBuf>,
}

impl Layout {
    fn of(interpreter: &Path) -> Self {
        let prefix = prefix_of(interpreter);
        let settings = read_text(&prefix.join("pyvenv.cfg"), Limit::Handwritten).ok();
        let Some(settings) = settings else {
            // Outside a virtual environment, resolving the links finds the installation.
            let real = interpreter.canonicalize().unwrap_or_else(|_| interpreter.to_owned());
            return Self::installed(&prefix_of(&real), version_in_name(&real));
        };
        let value = |name: &str| {
            let lines = settings.lines().filter_map(|line| line.split_once('='));
            lines.filter(|(key, _)| key.trim() == name).map(|(_, value)| value.trim().to_owned()).next()
        };
        let version = value("version").or_else(|| value("version_info"));
        let version = version.map(|version| version.splitn(4, '.').take(3).collect::<Vec<_>>().join("."));
        let mut layout = Self { packages: site_packages(&prefix, version.as_deref()), version };
        if value("include-system-site-packages").is_some_and(|value| value.eq_ignore_ascii_case("true"))
            && let Some(home) = value("home")
        {
            let base = Path::new(&home).parent().unwrap_or(Path::new("/usr"));
            layout.packages.extend(Self::installed(base, layout.version.clone()).packages);
        }
        layout
    }

    /// Returns the layout of an installation, with the packages of its user.
    fn installed(prefix: &Path, version: Option<String>) -> Self {
        let mut packages = site_packages(prefix, version.as_deref());
        let user = std::env::var_os("HOME").map(|home| Path::new(&home).join(".local"));
        packages.extend(user.iter().flat_map(|user| site_packages(user, version.as_deref())));
        // Debian keeps its own packages apart from those of pip.
        if prefix == Path::new("/usr") {
            packages.extend(site_packages(Path::new("/usr/local"), version.as_deref()));
            packages
                .extend([PathBuf::from("/usr/lib/python3/dist-packages")].into_iter().filter(|folder| folder.is_dir()));
        }
        Self { version, packages }
    }
}

/// Returns the folder above `bin`.
fn prefix_of(interpreter: &Path) -> PathBuf {
    interpreter.parent().and_then(Path::parent).unwrap_or(Path::new("/")).to_owned()
}

/// Reads the version in a name such as `python3.12`.
fn version_in_name(interpreter: &Path) -> Option<String> {
    let name = interpreter.file_name()?.to_str()?;
    name.strip_prefix("python").filter(|version| version.contains('.')).map(str::to_owned)
}

/// Returns the folders of packages below a prefix: those of its version, or all if the version is unknown.
fn site_packages(prefix: &Path, version: Option<&str>) -> Vec<PathBuf> {
    let minor = version.map(|version| version.splitn(3, '.').take(2).collect::<Vec<_>>().join("."));
    let mut found = Vec::new();
    for library in ["lib", "lib64"] {
        let versions = fs::read_dir(prefix.join(library)).into_iter().flatten().flatten();
        for folder in versions {
            let name = folder.file_name().to_string_lossy().into_owned();
            let Some(has) = name.strip_prefix("python").filter(|has| has.starts_with("3.")) else { continue };
            if minor.as_ref().is_none_or(|minor| minor == has) {
                let packages = ["site-packages", "dist-packages"].map(|packages| folder.path().join(packages));
                found.extend(packages.into_iter().filter(|packages| packages.is_dir()));
            }
        }
    }
    // lib64 is often a link to lib.
    let mut seen = std::collections::BTreeSet::new();
    found.retain(|folder| seen.insert(folder.canonicalize().unwrap_or_else(|_| folder.clone())));
    found.sort();
    found
}

#[cfg(test)]
mod tests {
    use super::PythonEnvironment;
    use crate::config::run::{AsWritten, Run, Source};
    use std::fs;
    use std::os::unix::fs::{PermissionsExt, symlink};
    use std::path::Path;

    fn run(base: &Path, command: &str) -> Run {
        let text = format!("name: x\ntask: command\ncommand: {command}\ndirectory: .\n");
        Run::read(&Source { file: "x.yaml", text: &text, base, overrides: &[] }, &AsWritten).unwrap()
    }

    /// Writes a virtual environment as `python -m venv` and pip do.
    fn write_environment(folder: &Path) {
        let site = folder.join("lib/python3.12/site-packages");
        fs::create_dir_all(site.join("torch")).unwrap();
        fs::create_dir_all(folder.join("bin")).unwrap();
        symlink("lib", folder.join("lib64")).unwrap();
        symlink("/usr/bin/env", folder.join("bin/python")).unwrap();
        let launcher = folder.join("bin/torchrun");
        fs::write(&launcher, format!("#!{}/bin/python\nimport torch\n", folder.display())).unwrap();
        fs::set_permissions(launcher, fs::Permissions::from_mode(0o755)).unwrap();
        fs::write(folder.join("pyvenv.cfg"), "home = /usr/bin\nversion = 3.12.3\n").unwrap();
        fs::write(site.join("torch/version.py"), "__version__ = '2.15.0+cu128'\ncuda: Optional[str] = '12.8'\n")
            .unwrap();
        for (name, version) in [("torch", "2.15.0+cu128"), ("Hugging_Face.Hub", "1.2.3")] {
            let info = site.join(format!("{}-{version}.dist-info", name.to_lowercase()));
            fs::create_dir(&info).unwrap();
            fs::write(
                info.join("METADATA"),
                format!("Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n\nText"),
            )
            .unwrap();
        }
        fs::create_dir(site.join("broken-0.1.dist-info")).unwrap();
    }

    #[test]
    fn a_virtual_environment_is_read_by_every_way_that_leads_to_it() {
        let folder = tempfile::tempdir().unwrap();
        let base = folder.path();
        write_environment(&base.join(".venv"));
        fs::write(base.join("start.sh"), "#!/bin/sh\nexec .venv/bin/python train.py \"$@\"\n").unwrap();
        for command in [
            "[.venv/bin/python, train.py]".to_owned(),
            format!("[{}/.venv/bin/torchrun, train.py]", base.display()),
            "[uv, run, train.py]".to_owned(),
            "[./start.sh, --lr, '1']".to_owned(),
        ] {
            let found = PythonEnvironment::of_run(&run(base, &command))
                .unwrap()
                .unwrap_or_else(|error| panic!("{command}: {error}"));
            assert_eq!(found.version.as_deref(), Some("3.12.3"), "{command}");
            assert_eq!(found.torch.as_ref().unwrap().to_string(), "2.15.0+cu128, CUDA 12.8");
            assert_eq!(found.version_of("hugging-face-hub"), Some("1.2.3"), "names are compared as pip compares them");
            assert_eq!(found.version_of("broken"), Some("0.1"), "without metadata, the folder's name counts");
            assert!(found.describe().contains("Hugging_Face.Hub==1.2.3\n"), "{}", found.describe());
        }
    }

    #[test]
    fn an_interpreter_that_cannot_be_found_is_an_error_in_a_sentence() {
        let folder = tempfile::tempdir().unwrap();
        for (command, wanted) in [
            ("[./missing/python, train.py]", "missing/python does not exist"),
            ("[no-such-program-here, train.py]", "no-such-program-here is not on the PATH"),
            ("[sleep, '5']", "does not start Python"),
        ] {
            let error = PythonEnvironment::of_run(&run(folder.path(), command)).unwrap().unwrap_err().to_string();
            assert!(error.contains(wanted), "{error}");
        }
    }
}
