use super::{RunDir, RunDirError};
use std::fs;
use std::process::Command;
use tempfile::TempDir;

#[test]
fn the_command_for_a_run_names_what_a_shell_has_to_know() {
    let dir = tempfile::tempdir().unwrap();
    let runs = dir.path().canonicalize().unwrap().join("my own's");
    let path = runs.join("digits-1");
    fs::create_dir_all(&path).unwrap();
    fs::write(path.join("run.yaml"), "").unwrap();
    let run = RunDir::open(&path).unwrap();
    assert_eq!(run.command_beside("resume", &runs), "downshift resume digits-1");
    let line = run.command_beside("resume", dir.path());
    let script = line.replacen("downshift", "printf '%s\\n'", 1);
    let words = Command::new("sh").args(["-c", &script]).output().unwrap().stdout;
    let wanted = format!("resume\n--runs-dir\n{}\ndigits-1\n", runs.display());
    assert_eq!(String::from_utf8(words).unwrap(), wanted);
}

#[test]
fn half_a_name_means_a_run_only_where_it_can_mean_no_other() {
    let runs = TempDir::new().unwrap();
    for name in ["digits-20261121-070000", "digits-20261121-070001", "digits-big-20261121-070002", "text"] {
        fs::create_dir(runs.path().join(name)).unwrap();
        fs::write(runs.path().join(name).join("run.yaml"), "").unwrap();
    }
    let find = |name| RunDir::find(runs.path(), Some(name));
    assert!(find("digits").unwrap().name().starts_with("digits-2026"), "the newest of that name");
    assert_eq!(find("digits-b").unwrap().name(), "digits-big-20261121-070002");
    assert_eq!(find("te").unwrap().name(), "text");
    assert!(matches!(find("dig"), Err(RunDirError::Several { count: 3, .. })));
    assert!(matches!(find("digits-2"), Err(RunDirError::Several { count: 2, .. })));
    assert!(matches!(find(""), Err(RunDirError::Unknown { .. })));
    assert!(matches!(find("nothing"), Err(RunDirError::Unknown { .. })));
    for (typed, meant) in [("digtis", "digits"), ("digits-bgi", "digits-big")] {
        let error = find(typed).unwrap_err().to_string();
        assert!(error.contains(&format!("did you mean `{meant}`?")), "{error}");
    }
}

#[test]
fn an_exact_name_leads_to_that_run_and_to_no_other() {
    let runs = TempDir::new().unwrap();
    for name in ["digits-20261121-070000", "digits-20261121-070000-2", "text"] {
        fs::create_dir(runs.path().join(name)).unwrap();
        fs::write(runs.path().join(name).join("run.yaml"), "").unwrap();
    }
    std::os::unix::fs::symlink("text", runs.path().join("alias")).unwrap();
    let find = |name: &str| RunDir::find_exact(runs.path(), name);
    assert_eq!(find("text").unwrap().name(), "text");
    assert_eq!(find(runs.path().join("text/").to_str().unwrap()).unwrap().name(), "text");
    fs::remove_dir_all(runs.path().join("digits-20261121-070000")).unwrap();
    for (name, suggested) in [("digits-20261121-070000", 1), ("digits", 1), ("alias", 0), ("nothing", 0)] {
        let refusal = find(name).unwrap_err();
        let RunDirError::NotExact { candidates, .. } = &refusal else { panic!("{name}: {refusal}") };
        assert_eq!(candidates.len(), suggested, "{name}");
    }
    let refusal = find("digits").unwrap_err().to_string();
    assert!(refusal.ends_with("write the whole name: digits-20261121-070000-2"), "{refusal}");
}
