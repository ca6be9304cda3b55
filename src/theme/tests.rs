use super::{Colours, Theme, ThemeError, nearest_indexed, nearest_named};
use ratatui::style::{Color, Modifier};

/// Returns the WCAG 2 contrast ratio of two colours, 1 to 21.
fn contrast(one: Color, other: Color) -> f64 {
    let luminance = |colour: Color| {
        let Color::Rgb(r, g, b) = colour else { return 0.0 };
        let linear = |channel: u8| {
            let share = f64::from(channel) / 255.0;
            if share <= 0.03928 { share / 12.92 } else { ((share + 0.055) / 1.055).powf(2.4) }
        };
        0.2126 * linear(r) + 0.7152 * linear(g) + 0.0722 * linear(b)
    };
    let (a, b) = (luminance(one) + 0.05, luminance(other) + 0.05);
    a.max(b) / a.min(b)
}

#[test]
fn the_shipped_themes_are_read() {
    let names: Vec<_> = Theme::shipped().unwrap().into_iter().map(|theme| theme.name).collect();
    assert_eq!(names, ["dark", "light", "high-contrast", "colour-blind", "monochrome"]);
}

#[test]
fn a_missing_or_unknown_role_and_a_wrong_colour_are_named() {
    let dark = include_str!("../../themes/dark.yaml");
    let missing = dark.replace("accent:", "# accent:");
    let error = Theme::parse(&missing).unwrap_err();
    assert!(matches!(&error, ThemeError::MissingRole(role) if role == "accent"), "{error}");
    let unknown = format!("{dark}\nsparkle: bold\n");
    let error = Theme::parse(&unknown).unwrap_err();
    assert!(matches!(error, ThemeError::Yaml(_)) && error.to_string().contains("sparkle"), "{error}");
    let wrong = dark.replacen("#8fcf8a", "greenish", 1);
    let error = Theme::parse(&wrong).unwrap_err();
    assert!(matches!(&error, ThemeError::Style { line: 9, error, .. } if error.word == "greenish"), "{error}");
}

#[test]
fn numbers_on_a_heat_map_are_readable() {
    for theme in Theme::shipped().unwrap() {
        if theme.name == "monochrome" {
            assert_eq!((theme.heat(0.0), theme.heat(1.0).bg), (theme.heat(1.0), None));
            continue;
        }
        for step in 0..=8 {
            let style = theme.heat(f64::from(step) / 8.0);
            let found = contrast(style.fg.unwrap(), style.bg.unwrap());
            assert!(found >= 3.0, "{} step {step}: {found:.1}", theme.name);
        }
        assert_ne!(theme.heat(0.0).bg, theme.heat(0.2).bg, "{}", theme.name);
        assert_eq!(theme.reduced_to(Colours::None).heat(1.0).bg, None);
    }
}

#[test]
fn colours_come_from_the_environment() {
    let detect = |pairs: &'static [(&str, &str)]| {
        Colours::detect(move |name| pairs.iter().find(|(key, _)| *key == name).map(|(_, value)| (*value).to_owned()))
    };
    assert_eq!(detect(&[("COLORTERM", "truecolor")]), Colours::True);
    assert_eq!(detect(&[("TERM", "tmux-256color")]), Colours::Indexed);
    assert_eq!(detect(&[("TERM", "linux")]), Colours::Sixteen);
    assert_eq!(detect(&[("NO_COLOR", "1"), ("COLORTERM", "truecolor")]), Colours::None);
    assert_eq!(detect(&[("NO_COLOR", ""), ("COLORTERM", "24bit")]), Colours::True);
    assert_eq!(detect(&[("TERM", "dumb")]), Colours::None);
}

#[test]
fn a_colour_maps_to_the_nearest_of_256() {
    for (rgb, named) in [
        ([0x11, 0x14, 0x1a], Color::Black),
        ([0xfb, 0xfa, 0xf7], Color::White),
        ([0x7f, 0xb4, 0xff], Color::LightBlue),
        ([0xf2, 0x77, 0x7a], Color::LightRed),
        ([0xe6, 0xb9, 0x5c], Color::LightYellow),
        ([0x8f, 0xcf, 0x8a], Color::LightGreen),
    ] {
        assert_eq!(nearest_named(rgb), named, "{rgb:?}");
    }
    for (rgb, index) in [([0, 0, 0], 16), ([255, 255, 255], 231), ([255, 0, 0], 196), ([18, 18, 18], 233)] {
        assert_eq!(nearest_indexed(rgb), index, "{rgb:?}");
    }
}

#[test]
fn text_has_enough_contrast() {
    for theme in Theme::shipped().unwrap().into_iter().filter(|theme| theme.name != "monochrome") {
        let ground = theme.base.bg.unwrap();
        let least = if theme.name == "high-contrast" { 7.0 } else { 4.5 };
        let text = [("base", theme.base), ("strong", theme.strong), ("accent", theme.accent), ("warn", theme.warn)];
        for (role, style) in text.into_iter().chain([("danger", theme.danger), ("overlay", theme.overlay)]) {
            let ratio = contrast(style.fg.unwrap(), style.bg.unwrap_or(ground));
            assert!(ratio >= least, "{} {role}: {ratio:.1}", theme.name);
        }
    }
}

#[test]
fn no_colour_leaves_only_weight() {
    let mut theme = Theme::shipped().unwrap().remove(0).reduced_to(Colours::None);
    assert!(theme.danger.add_modifier.contains(Modifier::BOLD));
    assert!(theme.dim.add_modifier.contains(Modifier::DIM));
    assert!(theme.styles().iter().all(|style| style.fg.is_none() && style.bg.is_none()));
    let mut indexed = Theme::shipped().unwrap().remove(0).reduced_to(Colours::Indexed);
    assert!(indexed.styles().iter().filter_map(|style| style.fg).all(|fg| matches!(fg, Color::Indexed(_))));
}
