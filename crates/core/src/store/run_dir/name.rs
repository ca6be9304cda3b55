//! The name of a run: the word of its run file, and the time of its start.

/// Reports whether a run's name ends with the time of its start, as [`super::RunDir::create`] makes it.
#[must_use]
pub fn is_stamped(name: &str) -> bool {
    without_stamp(name) != name
}

/// Returns a run's name without the time of its start.
#[must_use]
pub fn without_stamp(name: &str) -> &str {
    let stamp = name.match_indices('-').find(|(at, _)| *at > 0 && is_stamp(&name[*at..]));
    stamp.map_or(name, |(at, _)| &name[..at])
}

/// Reports whether this is the suffix that [`super::RunDir::create`] appends to a name: `-20261121-070000`,
/// with an optional `-2`.
#[must_use]
pub fn is_stamp(text: &str) -> bool {
    let mut parts = text.split('-');
    let digits = |part: Option<&str>, count: usize| {
        part.is_some_and(|part| part.len() == count && part.bytes().all(|byte| byte.is_ascii_digit()))
    };
    let is_time = parts.next() == Some("") && digits(parts.next(), 8) && digits(parts.next(), 6);
    let is_number = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    is_time && parts.next().is_none_or(is_number) && parts.next().is_none()
}

#[cfg(test)]
mod tests {
    use super::without_stamp;

    #[test]
    fn the_stamp_is_left_out_of_the_name() {
        let names = ["kitti-lora-20261121-030236", "digits", "a-b-c", "x-20261121-030236-2", "y-20261121-030236-b"];
        assert_eq!(names.map(without_stamp), ["kitti-lora", "digits", "a-b-c", "x", "y-20261121-030236-b"]);
    }
}
