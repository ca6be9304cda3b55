//! The checkpoints that a script writes, and how it resumes from one.

use super::{Draft, Note, Role};
use crate::config::command::template::escape;
use crate::config::command::{SaveRequest, StepCount};
use crate::init::flag::{Takes, ValueKind};
use crate::init::python::Literal;
use crate::init::saves::{Content, SavedFiles, shown_path};

/// The script's checkpoints.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Checkpoints {
    /// The code that writes them.
    pub writer: String,
    /// The pattern.
    pub pattern: String,
    /// The file written last; none if a checkpoint is one file.
    pub complete: Option<String>,
    /// Each save replaces the one before.
    pub is_overwritten: bool,
    /// The arguments that resume from one.
    pub resume: Option<Vec<String>>,
    /// The steps of the script after a resume, if they are known.
    pub count: Option<StepCount>,
}

impl Draft<'_> {
    /// Returns the folder that an argument names.
    fn folder(&self, flag: usize) -> Option<String> {
        match self.command.value(flag)? {
            Literal::Text(text) if !text.is_empty() => Some(escape(text.trim_end_matches('/'))),
            _ => None,
        }
    }

    /// Returns the script's own checkpoints. What the companion saves needs none of them.
    pub(super) fn find_checkpoints(&mut self) -> Option<Checkpoints> {
        if self.facts.attached.is_some() {
            self.notes.push(Note::Attached);
            return None;
        }
        let Some(kept) = self.facts.kept else { return self.find_own_checkpoints() };
        let known = self.notes.len();
        let checkpoints = self.find_own_checkpoints().filter(|own| own.resume.is_some());
        self.notes.truncate(known);
        self.notes.push(Note::Kept(kept));
        checkpoints
    }

    fn find_own_checkpoints(&mut self) -> Option<Checkpoints> {
        let Some((profile, form)) = self.facts.profile.and_then(|it| Some((it, it.checkpoints.as_ref()?))) else {
            return self.find_saved_files();
        };
        let flags = self.facts.flags;
        let needed = form.needs.as_ref().and_then(|name| flags.iter().position(|flag| flag.key == *name));
        let missing = needed.filter(|flag| !self.command.is_on(*flag));
        if let Some(missing) = missing {
            self.notes.push(Note::NotSaved(flags[missing].spelling().to_owned()));
        }
        let Some(pattern) = self.fill_names(&form.pattern) else {
            self.notes.push(Note::NoOutputDirectory);
            return None;
        };
        let known = profile.resume.as_ref().and_then(|resume| resume.arguments.clone());
        let resume = match missing {
            Some(_) => None,
            None => self.resume_arguments(known.filter(|_| self.facts.words.open)),
        };
        Some(Checkpoints {
            writer: form.writer.clone().unwrap_or_else(|| profile.name.clone()),
            pattern,
            complete: form.complete.clone(),
            is_overwritten: form.overwritten,
            resume,
            count: profile.resume.as_ref().and_then(|resume| resume.count),
        })
    }

    /// Fills in the values that a text of the profile names: `<output_dir>/checkpoint-*`, `<name|train>` where the value may be
    /// empty or unknown.
    fn fill_names(&self, text: &str) -> Option<String> {
        let mut filled = String::new();
        let mut rest = text;
        while let Some((before, (name, after))) = rest.split_once('<').and_then(|(a, b)| Some((a, b.split_once('>')?)))
        {
            let (name, otherwise) = name.split_once('|').map_or((name, None), |(name, text)| (name, Some(text)));
            let role = self.table.role_named(name).and_then(|role| self.flag(role));
            let folder = role.or_else(|| self.named(name)).and_then(|flag| self.folder(flag));
            filled.push_str(&escape(before));
            filled.push_str(&folder.or_else(|| otherwise.map(str::to_owned))?);
            rest = after;
        }
        Some(filled + &escape(rest))
    }

    /// Returns how the trainer is asked to save.
    pub(super) fn find_save(&self) -> Option<SaveRequest> {
        let save = self.facts.profile?.save.clone()?;
        let touch = match &save.touch {
            Some(file) => Some(self.fill_names(file)?),
            None => None,
        };
        Some(SaveRequest { touch, ..save })
    }

    /// Proposes the files that the script itself passes to `torch.save`.
    pub(super) fn find_saved_files(&mut self) -> Option<Checkpoints> {
        let argument = |name: &str| {
            let key = name.rsplit('.').next().unwrap_or(name);
            self.folder(self.facts.flags.iter().position(|flag| flag.key == key)?)
        };
        let find = |content| SavedFiles::find(&self.facts.saved, content, argument);
        let weights = || {
            let form = find(Content::Weights)?;
            // Its own argument for a checkpoint may load weights alone.
            self.flag(Role::Resume).is_some().then_some(form)
        };
        let (SavedFiles { pattern, is_numbered }, note) = match (find(Content::State), weights()) {
            (Some(form), _) => (form, None),
            (None, Some(form)) => (form, Some(Note::ResumesWeights)),
            (None, None) => {
                self.notes.push(self.describe_unresumable());
                return None;
            }
        };
        self.notes.extend(note);
        Some(Checkpoints {
            writer: "the script".to_owned(),
            pattern,
            complete: None,
            is_overwritten: !is_numbered,
            resume: self.resume_arguments(None),
            count: None,
        })
    }

    /// Says why nothing that the script saves is a checkpoint.
    fn describe_unresumable(&self) -> Note {
        let mut weights: Vec<String> = Vec::new();
        for file in &self.facts.saved {
            let path = shown_path(&file.path);
            if file.content == Content::State {
                return Note::UnknownCheckpoints;
            }
            if file.content != Content::Optimizer && !weights.contains(&path) {
                weights.push(path);
            }
        }
        if weights.is_empty() { Note::UnknownCheckpoints } else { Note::OnlyWeights(weights) }
    }

    /// Returns the arguments that resume from a checkpoint: known ones, or those of the script's own argument.
    fn resume_arguments(&mut self, known: Option<Vec<String>>) -> Option<Vec<String>> {
        let flags = self.facts.flags;
        let resume = self.flag(Role::Resume).filter(|_| self.facts.words.open);
        let resume = known.or(resume.and_then(|flag| match (&flags[flag].takes, flags[flag].spelling()) {
            (Takes::Value(ValueKind::Text), long) if long.starts_with("--") => {
                Some(vec![format!("{long}={{checkpoint}}")])
            }
            (Takes::Value(ValueKind::Text), short) => Some(vec![short.to_owned(), "{checkpoint}".to_owned()]),
            (Takes::KeyValue { kind: ValueKind::Text, .. }, key) => Some(vec![format!("{key}={{checkpoint}}")]),
            // The script looks for its checkpoint itself.
            (Takes::Presence(true) | Takes::Pair { .. }, switch) => Some(vec![switch.to_owned()]),
            _ => None,
        }));
        if resume.is_none() {
            self.notes.push(Note::NoResume);
        }
        resume
    }
}
