use super::Profile;

#[test]
fn the_shipped_profiles_are_sound_and_have_names_of_their_own() {
    let profiles = Profile::shipped().unwrap_or_else(|error| panic!("{error}"));
    let mut names: Vec<&str> = profiles.iter().map(|profile| profile.name.as_str()).collect();
    names.sort_unstable();
    names.dedup();
    assert_eq!(names.len(), profiles.len());
}
