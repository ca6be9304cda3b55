//! The time limit of a job, as Slurm reads it.

/// Returns the seconds of `minutes`, `M:S`, `H:M:S`, `D-H`, `D-H:M` or `D-H:M:S`. None for anything else, such as a keyword.
pub fn seconds(text: &str) -> Option<u64> {
    let (days, rest) = match text.split_once('-') {
        Some((days, rest)) => (Some(days.parse::<u64>().ok()?), rest),
        None => (None, text),
    };
    let parts: Vec<u64> = rest.split(':').map(|part| part.parse().ok()).collect::<Option<_>>()?;
    let (hours, minutes, seconds) = match (days, &parts[..]) {
        (Some(_), [hours]) => (*hours, 0, 0),
        (Some(_), [hours, minutes]) => (*hours, *minutes, 0),
        (None, [minutes]) => (0, *minutes, 0),
        (None, [minutes, seconds]) => (0, *minutes, *seconds),
        (_, [hours, minutes, seconds]) => (*hours, *minutes, *seconds),
        _ => return None,
    };
    let hours = days.unwrap_or(0).checked_mul(24)?.checked_add(hours)?;
    let minutes = hours.checked_mul(60)?.checked_add(minutes)?;
    minutes.checked_mul(60)?.checked_add(seconds)
}

#[cfg(test)]
mod tests {
    use super::seconds;

    #[test]
    fn every_form_of_slurm_is_read() {
        for (text, wanted) in [
            ("3", Some(180)),
            ("3:20", Some(200)),
            ("1:00:05", Some(3605)),
            ("1-2", Some(93_600)),
            ("1-2:03", Some(93_780)),
            ("1-2:03:04", Some(93_784)),
            ("UNLIMITED", None),
            ("", None),
            ("1:2:3:4", None),
            ("99999999999999999999", None),
        ] {
            assert_eq!(seconds(text), wanted, "{text}");
        }
    }
}
