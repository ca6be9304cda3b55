//! Compares the environment of the start with the one of now, and decides which variables change.

use super::variables::is_public;
use crate::protocol::environment::{Difference, EnvironmentNews, Value};
use crate::store::environment::KeptEnvironment;
use std::collections::BTreeSet;

/// Longest value that is shown.
const LONGEST: usize = 80;

/// Which environment counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Precedence {
    /// That of the start: nobody chose the one of now.
    Start,
    /// That of the user's shell, and of the start for what the shell does not set.
    Shell,
    /// That of the job, whose script makes it anew.
    Job,
}

/// The decision.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Merged {
    /// Variables to set.
    pub set: Vec<(String, String)>,
    /// Variables to remove.
    pub unset: Vec<String>,
    /// The environment that results.
    pub result: KeptEnvironment,
    /// The report for the journal.
    pub news: EnvironmentNews,
}

/// Merges two environments. `given`: variables that the run file sets in any case.
pub fn merge(
    start: &KeptEnvironment,
    now: &KeptEnvironment,
    precedence: Precedence,
    given: &BTreeSet<String>,
) -> Merged {
    let mut merged = Merged { result: now.clone(), ..Merged::default() };
    for (name, value) in &start.variables {
        merged.settle(name, value, now, precedence);
    }
    let is_new = |name: &&String| {
        !start.variables.contains_key(*name) && !start.secrets.contains(*name) && !start.left_out.contains(*name)
    };
    for name in now.variables.keys().filter(is_new) {
        if precedence == Precedence::Start {
            merged.unset.push(name.clone());
            merged.result.variables.remove(name);
        } else {
            merged.differ(name, None, now.variables.get(name));
        }
    }
    for name in start.left_out.iter().filter(|name| !is_set(now, name)) {
        merged.news.differing.push(Difference { name: name.clone(), was: Value::Hidden, is: Value::Unset });
    }
    merged.news.missing_secrets = start.secrets.iter().filter(|name| !is_set(now, name)).cloned().collect();
    // They are still missing at the next start.
    merged.result.secrets.extend(start.secrets.iter().filter(|name| !now.variables.contains_key(*name)).cloned());
    merged.leave_out(given);
    merged
}

impl Merged {
    fn settle(&mut self, name: &str, value: &String, now: &KeptEnvironment, precedence: Precedence) {
        let current = now.variables.get(name);
        if current == Some(value) {
            return;
        }
        let restores = match precedence {
            Precedence::Start => true,
            Precedence::Shell => !is_set(now, name),
            Precedence::Job => false,
        };
        if restores {
            self.set.push((name.to_owned(), value.clone()));
            self.result.variables.insert(name.to_owned(), value.clone());
            self.result.secrets.remove(name);
            self.news.restored.push(name.to_owned());
        } else if current.is_some() || !is_set(now, name) {
            self.differ(name, Some(value), current);
        } else {
            self.news.differing.push(Difference { name: name.to_owned(), was: Value::Hidden, is: Value::Hidden });
        }
    }

    fn differ(&mut self, name: &str, was: Option<&String>, is: Option<&String>) {
        let shown = |value: Option<&String>| match value {
            None => Value::Unset,
            Some(value) if is_public(name) && value.len() <= LONGEST => Value::Shown(value.clone()),
            Some(_) => Value::Hidden,
        };
        self.news.differing.push(Difference { name: name.to_owned(), was: shown(was), is: shown(is) });
    }

    /// Leaves variables that the run file sets out of the report, and names those first that say most.
    fn leave_out(&mut self, given: &BTreeSet<String>) {
        let news = &mut self.news;
        news.restored.retain(|name| !given.contains(name));
        news.differing.retain(|difference| !given.contains(&difference.name));
        news.missing_secrets.retain(|name| !given.contains(name));
        news.restored.sort_by_key(|name| !is_public(name));
        news.differing.sort_by_key(|difference| !is_public(&difference.name));
    }
}

fn is_set(environment: &KeptEnvironment, name: &str) -> bool {
    environment.variables.contains_key(name)
        || environment.secrets.contains(name)
        || environment.left_out.contains(name)
}

#[cfg(test)]
mod tests {
    use super::{Merged, Precedence, merge};
    use crate::protocol::environment::{Difference, EnvironmentNews, Value};
    use crate::store::environment::KeptEnvironment;
    use std::collections::BTreeSet;

    fn environment(variables: &[(&str, &str)], secrets: &[&str]) -> KeptEnvironment {
        KeptEnvironment {
            variables: variables.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect(),
            secrets: secrets.iter().map(|name| (*name).to_owned()).collect(),
            ..KeptEnvironment::default()
        }
    }

    fn start() -> KeptEnvironment {
        environment(&[("CUDA_VISIBLE_DEVICES", "0"), ("FLAG", "a"), ("PATH", "/venv/bin:/bin")], &["HF_TOKEN"])
    }

    fn merged(now: &KeptEnvironment, precedence: Precedence) -> Merged {
        merge(&start(), now, precedence, &["GIVEN".to_owned()].into())
    }

    fn differing(merged: &Merged) -> Vec<(&str, &Value, &Value)> {
        merged.news.differing.iter().map(|it| (it.name.as_str(), &it.was, &it.is)).collect()
    }

    #[test]
    fn after_a_reboot_the_environment_is_that_of_the_start_but_for_secrets() {
        let bare = environment(&[("PATH", "/bin"), ("OTHER", "x"), ("GIVEN", "x")], &[]);
        let merged = merged(&bare, Precedence::Start);
        assert_eq!(merged.result.variables, start().variables);
        assert_eq!(merged.unset, ["GIVEN", "OTHER"]);
        assert_eq!(merged.news.restored, ["CUDA_VISIBLE_DEVICES", "FLAG", "PATH"]);
        assert_eq!((merged.news.missing_secrets, merged.news.differing), (vec!["HF_TOKEN".to_owned()], vec![]));
        assert_eq!(merge(&start(), &start(), Precedence::Start, &BTreeSet::new()).news, EnvironmentNews::default());
    }

    #[test]
    fn a_shell_wins_for_what_it_sets_and_the_differences_are_named() {
        let shell = environment(
            &[("CUDA_VISIBLE_DEVICES", "1"), ("PATH", "/bin"), ("GIVEN", "x"), ("NEW", "x")],
            &["HF_TOKEN"],
        );
        let merged = merged(&shell, Precedence::Shell);
        assert_eq!(
            (merged.set.as_slice(), merged.unset.as_slice()),
            (&[("FLAG".to_owned(), "a".to_owned())][..], &[][..])
        );
        let shown = |value: &str| Value::Shown(value.to_owned());
        let wanted = [
            ("CUDA_VISIBLE_DEVICES", &shown("0"), &shown("1")),
            ("PATH", &Value::Hidden, &Value::Hidden),
            ("NEW", &Value::Unset, &Value::Hidden),
        ];
        assert_eq!(differing(&merged), wanted, "the value of an unknown variable may be a secret");
        assert!(merged.news.missing_secrets.is_empty());
        assert_eq!(merged.result.variables["CUDA_VISIBLE_DEVICES"], "1", "the next start compares with this one");
        assert_eq!(merged.result.variables["FLAG"], "a");
    }

    #[test]
    fn a_job_keeps_its_own_environment() {
        let merged = merged(&environment(&[("FLAG", "b")], &[]), Precedence::Job);
        assert_eq!((merged.set.len(), merged.unset.len(), merged.result.variables.len()), (0, 0, 1));
        let names: Vec<&str> = merged.news.differing.iter().map(|Difference { name, .. }| name.as_str()).collect();
        assert_eq!(names, ["CUDA_VISIBLE_DEVICES", "FLAG", "PATH"]);
    }

    #[test]
    fn a_secret_that_was_missing_once_is_named_again() {
        let first = merged(&environment(&[], &[]), Precedence::Shell);
        assert!(first.result.secrets.contains("HF_TOKEN"));
        let again = merge(&first.result, &environment(&[], &[]), Precedence::Start, &BTreeSet::new());
        assert_eq!(again.news.missing_secrets, ["HF_TOKEN"]);
    }
}
