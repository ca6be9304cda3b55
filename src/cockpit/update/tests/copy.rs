//! Copying, and writing charts.

use super::{SIZE, letter};
use crate::cockpit::fixture;
use crate::cockpit::quantity::Quantity;
use crate::cockpit::state::State;
use crate::cockpit::state::runs::OtherRun;
use crate::cockpit::state::screen::{Panel, View};
use crate::cockpit::update::{Effect, Msg, OtherBox, update};
use crate::store::run_summary::RunSummary;

/// Presses `C` in a panel; returns the copied text.
fn copy_from(state: &mut State, panel: Panel) -> Option<String> {
    state.screen.focus = panel;
    update(state, letter('C')).into_iter().find_map(|effect| match effect {
        Effect::Copy(text) => Some(text),
        _ => None,
    })
}

#[test]
fn the_item_under_the_cursor_is_copied() {
    let mut state = fixture::training(SIZE);
    let step = state.facts.series.last().unwrap().step;
    let newest = copy_from(&mut state, Panel::Chart(Quantity::Loss)).unwrap();
    let (value, at) = newest.strip_prefix("loss ").and_then(|rest| rest.split_once(" at step ")).unwrap();
    assert!(value.parse::<f64>().is_ok() && at == step.to_string(), "{newest}");
    state.screen.chart.cursor = Some(100.0);
    assert!(copy_from(&mut state, Panel::Chart(Quantity::Loss)).unwrap().ends_with(" at step 100"));
    let eval = state.facts.evals.values().next_back().unwrap().eval.clone();
    state.screen.chart.cursor = None;
    let wanted = format!("validation loss {} at step {}", eval.loss.unwrap(), eval.step);
    assert_eq!(copy_from(&mut state, Panel::Chart(Quantity::Evaluation)), Some(wanted));

    let row = state.facts.journal.back().unwrap().text.clone();
    assert!(copy_from(&mut state, Panel::Journal).unwrap().ends_with(&format!(" {row}")));
    assert_eq!(copy_from(&mut state, Panel::Ladder), state.rung().map(|rung| state.ladder[rung].name.clone()));
    state.screen.chosen_checkpoint = 1;
    let kept = state.facts.checkpoints.values().rev().filter(|row| row.kept).nth(1).unwrap().path.clone();
    let path = format!("{}/{kept}", state.status().unwrap().run_dir);
    assert_eq!(copy_from(&mut state, Panel::Checkpoints), Some(path));
    update(&mut state, Msg::Log(vec!["first".to_owned(), "\u{1b}]52;c;eA==\u{7}rm -rf\n".to_owned()]));
    let line = copy_from(&mut state, Panel::Log).unwrap();
    assert_eq!(line, "\\u001b]52;c;eA==\\u0007rm -rf\\n", "a paste into a shell runs nothing");
    state.screen.log_back = 1;
    assert_eq!(copy_from(&mut state, Panel::Log).as_deref(), Some("first"));

    update(&mut state, Msg::Copied("first".to_owned()));
    assert_eq!(state.notice.as_ref().map(|notice| notice.text.as_str()), Some("copied: first"));
    assert_eq!(copy_from(&mut state, Panel::Gauges), None);
    assert!(state.notice.unwrap().text.starts_with("nothing to copy here"));
}

#[test]
fn a_text_that_tmux_refuses_goes_to_the_terminal() {
    let mut state = fixture::training(SIZE);
    let effects = update(&mut state, Msg::TmuxRefused("x".to_owned()));
    assert_eq!(effects, [Effect::CopyByTerminal("x".to_owned())]);
}

#[test]
fn charts_of_steps_and_evaluations_have_a_picture() {
    let mut state = fixture::training(SIZE);
    state.screen.view = View::Charts;
    let pictures = |state: &mut State, quantity| {
        state.screen.focus = Panel::Chart(quantity);
        update(state, letter('e')).iter().any(|effect| matches!(effect, Effect::WriteChart(_)))
    };
    assert!(pictures(&mut state, Quantity::Loss) && pictures(&mut state, Quantity::Evaluation));
    assert!(!pictures(&mut state, Quantity::Vram));
    assert!(
        state.notice.as_ref().is_some_and(|notice| notice.refused && notice.text.starts_with("no picture of this"))
    );
    let wrote = Msg::ChartWritten("runs/x-loss.svg".into());
    update(&mut state, wrote);
    assert_eq!(state.notice.map(|notice| notice.text).as_deref(), Some("wrote runs/x-loss.svg"));
}

#[test]
fn samples_mistakes_layers_and_differences_are_copied() {
    use crate::cockpit::fixture::samples::{DIGITS, read_all};
    let mut state = fixture::training(SIZE);
    update(&mut state, letter('7'));
    read_all(&mut state, DIGITS);
    assert!(copy_from(&mut state, Panel::Samples).is_some_and(|text| text.contains('/')), "the path of a picture");
    assert!(
        copy_from(&mut state, Panel::Confusion)
            .is_some_and(|text| text.contains(" × ") && text.contains(" taken for "))
    );
    update(&mut state, letter('8'));
    read_all(&mut state, DIGITS);
    assert!(copy_from(&mut state, Panel::Layers).is_some_and(|text| text.contains(" update ratio ")));
    update(&mut state, letter('6'));
    assert_eq!(copy_from(&mut state, Panel::Difference), None, "no run is chosen");
    let other = RunSummary { name: "other".to_owned(), ..RunSummary::default() };
    update(&mut state, Msg::Runs(vec![other]));
    let mut ladder = fixture::ladder_at(1e-3);
    // A section that only one of them has.
    for rung in &mut ladder {
        rung.preset["knobs"] = serde_json::json!({ "noise": { "scale": 0.5 } });
    }
    let run = OtherRun { ladder, ..OtherRun::default() };
    update(&mut state, Msg::Other { name: "other".to_owned(), run: Ok(OtherBox(Box::new(run))) });
    assert_eq!(
        copy_from(&mut state, Panel::Difference).as_deref(),
        Some("optimizer.lr 0.002 → 0.001; safe: optimizer.lr 0.001 → 0.0005; knobs.noise.scale not set → 0.5")
    );
}
