use super::meters;
use crate::cockpit::fixture::{self, NOW};
use crate::cockpit::state::State;
use crate::cockpit::update::{Msg, update};
use crate::protocol::control::{RunState, Update};

const SIZE: (u16, u16) = (200, 50);

fn meter_note(state: &State, label: &str) -> String {
    let meters = meters(state);
    meters.iter().find(|meter| meter.label == label).map(|meter| meter.note(200)).unwrap_or_default()
}

#[test]
fn a_window_says_how_many_steps_it_holds_and_of_how_many() {
    let mut state = fixture::training(SIZE);
    assert!(meter_note(&state, "skips").starts_with("3 of 700 in total · "), "{}", meter_note(&state, "skips"));
    let rows = (701..=8_370).map(|step| fixture::step_row(2, step, NOW + step.cast_signed())).collect();
    update(&mut state, Msg::Keeper(Update::Steps { rows }));
    fixture::apply_status(&mut state, fixture::status(RunState::Training, 8_370));
    let told = meter_note(&state, "skips");
    assert!(told.starts_with("3 of 8 370 in total · 0 % of the last 2 0"), "{told}");
}
