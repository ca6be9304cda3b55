use super::{SETS, SampleData, Samples, SetId};
use crate::cockpit::read_error::ReadError;
use std::sync::Arc;

fn read(samples: &mut Samples, wanted: &[SetId]) -> Vec<SetId> {
    let missing = samples.take_missing(wanted.to_vec());
    for id in &missing {
        samples.store_set(*id, Ok(Arc::new(SampleData::default())));
    }
    missing
}

#[test]
fn sets_on_the_screen_are_never_forgotten() {
    let mut samples = Samples::default();
    let last = 2 * SETS as u64;
    samples.replace_list((0..=last).map(SetId::Step).collect());
    let screen = |chosen| [SetId::Step(chosen), SetId::Step(0), SetId::Step(last)];
    for chosen in (1..last).rev() {
        read(&mut samples, &screen(chosen));
        assert_eq!(read(&mut samples, &screen(chosen)), [], "everything on the screen of step {chosen} is known");
        assert!(samples.read.len() <= SETS);
    }
}

#[test]
fn a_set_that_could_not_be_read_is_read_again_with_the_next_list() {
    let mut samples = Samples::default();
    let sets = [SetId::Step(5), SetId::Step(9)];
    samples.replace_list(sets.to_vec());
    assert_eq!(samples.take_missing(sets.to_vec()), sets);
    samples.store_set(sets[0], Ok(Arc::new(SampleData::default())));
    samples.store_set(sets[1], Err(ReadError::Run("permission denied".to_owned())));
    assert_eq!(samples.take_missing(sets.to_vec()), []);
    samples.replace_list(sets.to_vec());
    assert_eq!(samples.take_missing(sets.to_vec()), [sets[1]]);
    assert!(samples.read.contains_key(&sets[1]), "the error stays until the set was read again");
}
