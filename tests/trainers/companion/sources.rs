//! Which steps count: those of the companion or those in the output, which have other numbers in these scripts.

use super::{STEPS, Scene, companion, notes, steps};
use downshift::protocol::companion::{Framework, Grade};
use downshift::protocol::worker::{CommandNews, Event};

/// Returns the loss of each step that was reported with one.
fn losses(events: &[Event]) -> Vec<(u64, f64)> {
    let loss = |event: &Event| match event {
        Event::Step(step) => Some((step.step, step.loss?)),
        _ => None,
    };
    events.iter().filter_map(loss).collect()
}

#[test]
fn the_output_counts_again_when_the_companion_is_gone() {
    let scene = Scene::new("loop", &["--step-ms", "100", "--mischief", "dead"], "");
    let (events, code) = scene.attempt(1, &[]);
    assert!(
        notes(&events).iter().any(|text| text.starts_with("downshift's helper in the script is gone")),
        "{:?}",
        notes(&events)
    );
    let last = events.iter().rev().find_map(|event| match event {
        Event::Command { news: CommandNews::Companion(news) } => Some(news),
        _ => None,
    });
    assert!(last.is_some_and(|news| !news.saves && news.grade == Grade::None));
    assert_eq!(steps(&events).last(), Some(&(2 * STEPS)), "as the script prints them");
    assert_eq!(code, Some(0));
}

#[test]
fn steps_in_the_output_win_over_a_companion_that_only_sees_optimizer_steps() {
    for (framework, wanted) in [("torch", Framework::Torch), ("accelerate", Framework::Accelerate)] {
        let scene = Scene::new(framework, &["--step-ms", "20"], "");
        let (events, code) = scene.attempt(1, &[]);
        assert_eq!((code, companion(&events).framework), (Some(0), wanted));
        // The companion may be faster than the first line of the output.
        let taken: Vec<u64> = steps(&events).into_iter().filter(|step| *step > 10).collect();
        let printed: Vec<u64> = (6..=STEPS).map(|step| step * 2).collect();
        assert_eq!(taken, printed, "{framework}");
        let later: Vec<f64> =
            losses(&events).into_iter().filter(|(step, _)| *step > 10).map(|(_, loss)| loss).collect();
        assert_eq!(later, vec![9.9; later.len()], "{framework}");
    }
}

#[test]
fn steps_of_such_a_companion_count_where_the_output_names_none() {
    let scene = Scene::new("torch", &["--step-ms", "20", "--mischief", "quiet"], "");
    let (events, code) = scene.attempt(1, &[]);
    assert_eq!((code, steps(&events)), (Some(0), (1..=STEPS).collect::<Vec<_>>()));
}
