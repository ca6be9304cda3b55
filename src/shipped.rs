//! Files that ship inside the program: run files, themes, keymaps.

use crate::config::typed::suggest;
use std::path::Path;

/// A kind of shipped file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// Trained by `run`.
    RunFile,
    /// Colours of the cockpit.
    Theme,
    /// Keys of the cockpit.
    Keymap,
}

/// A shipped file.
#[derive(Debug, Clone, Copy)]
pub struct Shipped {
    /// Its kind.
    pub kind: Kind,
    /// The name that commands take.
    pub name: &'static str,
    /// Its path in this repository, shown in messages.
    pub path: &'static str,
    /// The content, with its comments.
    pub text: &'static str,
}

/// Builds the table of files from their kinds, folders and names.
macro_rules! shipped {
    ($($kind:ident in $folder:literal: $($name:literal)+;)+) => {
        &[$($(Shipped {
            kind: Kind::$kind,
            name: $name,
            path: concat!($folder, "/", $name, ".yaml"),
            text: include_str!(concat!("../", $folder, "/", $name, ".yaml")),
        },)+)+]
    };
}

/// Every shipped file; the first theme is the default.
pub const FILES: &[Shipped] = shipped! {
    RunFile in "configs": "digits" "pictures" "text" "lora" "finetune" "stable" "sizes" "cifar10" "search" "command";
    Theme in "themes": "dark" "light" "high-contrast" "colour-blind" "monochrome";
    Keymap in "keymaps": "default" "hjkl";
};

impl Shipped {
    /// Returns the first clause of the comment at its top.
    #[must_use]
    pub fn summary(&self) -> String {
        let comment = self.text.lines().map_while(|line| line.strip_prefix('#')).map(str::trim);
        let text = comment.take_while(|line| !line.is_empty()).collect::<Vec<_>>().join(" ");
        let end = [". ", "; ", ": "].iter().filter_map(|mark| text.find(mark)).min().unwrap_or(text.len());
        text[..end].trim_end_matches('.').to_owned()
    }
}

/// Returns the shipped files of a kind.
pub fn of_kind(kind: Kind) -> impl Iterator<Item = &'static Shipped> {
    FILES.iter().filter(move |file| file.kind == kind)
}

/// Returns the names of the shipped run files.
#[must_use]
pub fn names() -> Vec<&'static str> {
    of_kind(Kind::RunFile).map(|file| file.name).collect()
}

/// Finds a shipped run file by name or by path, and returns its display name and text. A name with an extension is a file
/// of the user's.
#[must_use]
pub fn run_file(path: &Path) -> Option<(&'static str, &'static str)> {
    if path.components().count() == 1 && path.extension().is_some() {
        return None;
    }
    let found = find(path).filter(|file| file.kind == Kind::RunFile)?;
    Some((found.path, found.text))
}

/// Finds a shipped file by name, with or without its folder and extension.
#[must_use]
pub fn find(path: &Path) -> Option<&'static Shipped> {
    let wanted = path.file_stem()?.to_str()?;
    let alone = path.components().count() == 1;
    let fits = |file: &Shipped| file.name == wanted && (alone || Path::new(file.path) == path.with_extension("yaml"));
    FILES.iter().find(|file| fits(file))
}

/// Returns a suggestion for an unknown name of a shipped file.
#[must_use]
pub fn suggest_name(unknown: &str) -> String {
    let names: Vec<&str> = FILES.iter().map(|file| file.name).collect();
    suggest(unknown, &names)
}

#[cfg(test)]
mod tests {
    use super::{FILES, Kind, find, names, run_file, suggest_name};
    use crate::config::mildness::find_no_safer;
    use crate::config::run::{AsWritten, Run, Source};
    use crate::config::trust::Grants;
    use std::collections::BTreeSet;
    use std::path::Path;

    #[test]
    fn every_file_of_the_folders_ships_under_a_name_of_its_own() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR"));
        let folders = ["configs", "themes", "keymaps"];
        let present = folders.iter().flat_map(|folder| root.join(folder).read_dir().unwrap().flatten());
        let present =
            present.map(|entry| entry.path()).filter(|path| path.extension().is_some_and(|end| end == "yaml"));
        let present: BTreeSet<_> = present.collect();
        let listed: BTreeSet<_> = FILES.iter().map(|file| root.join(file.path)).collect();
        assert_eq!(listed, present);
        let distinct: BTreeSet<&str> = FILES.iter().map(|file| file.name).collect();
        assert_eq!(distinct.len(), FILES.len(), "a name stands for one file");
    }

    #[test]
    fn files_are_found_by_name_and_path_and_each_says_what_it_is() {
        for (path, found) in [
            ("digits", Some("configs/digits.yaml")),
            ("digits.yaml", Some("configs/digits.yaml")),
            ("configs/digits", Some("configs/digits.yaml")),
            ("themes/dark.yaml", Some("themes/dark.yaml")),
            ("default", Some("keymaps/default.yaml")),
            ("mine/digits.yaml", None),
            ("themes/digits.yaml", None),
            ("digit", None),
        ] {
            assert_eq!(find(Path::new(path)).map(|file| file.path), found, "{path}");
        }
        for (name, ships) in [("digits", true), ("configs/digits.yaml", true), ("digits.yaml", false), ("dark", false)]
        {
            assert_eq!(run_file(Path::new(name)).is_some(), ships, "{name}");
        }
        assert_eq!(names().first(), Some(&"digits"));
        assert_eq!(suggest_name("dgits"), "did you mean `digits`?");
        for file in FILES {
            let summary = file.summary();
            assert!((10..=120).contains(&summary.len()), "{}: {summary}", file.name);
        }
        assert!(FILES.iter().any(|file| file.kind == Kind::Keymap));
    }

    #[test]
    fn every_rung_that_ships_is_safer_than_those_above_it_and_only_the_command_needs_approval() {
        for name in names() {
            let (file, text) = run_file(Path::new(name)).unwrap();
            let source = Source { file, text, base: Path::new("/"), overrides: &[] };
            let run = Run::read(&source, &AsWritten).unwrap_or_else(|refusal| panic!("{refusal}"));
            assert_eq!(find_no_safer(&run.rungs), [], "{file}");
            assert_eq!(Grants::from_run(&run).is_empty(), name != "command", "{file}");
        }
    }
}
