use super::{bar, cut, cut_clause, cut_line, cut_start, pad, pad_left, spark, wrap};
use crate::cockpit::ratio::Ratio;
use crate::theme::Theme;
use proptest::prelude::*;
use ratatui::style::Style;
use ratatui::text::{Line, Span};
use unicode_width::UnicodeWidthStr;

#[test]
fn text_is_wrapped_between_words_and_never_within_a_number() {
    assert_eq!(wrap("resumed at step 1 204 after", 17), ["resumed at step", "1 204 after"]);
    assert_eq!(wrap("went on after 0.9 s, well", 18), ["went on after", "0.9 s, well"]);
    assert_eq!(wrap("abcdefgh", 3), ["abc", "def", "gh"]);
    assert_eq!(wrap("a\u{17d8}b", 2), ["a…", "b"], "U+17D8 is three columns wide");
    assert_eq!(wrap("ae\u{301}b", 2), ["ae\u{301}", "b"], "an accent stays with its letter");
    assert_eq!((cut("abcdef", 4), cut_start("abcdef", 4)), ("abc…".to_owned(), "…def".to_owned()));
    assert_eq!((pad("ab", 4), pad_left("ab", 4)), ("ab  ".to_owned(), "  ab".to_owned()));
}

#[test]
fn a_line_that_is_too_long_ends_in_an_ellipsis() {
    let line = || Line::from(vec![Span::raw("abc"), Span::raw("def"), Span::raw("gh  ")]);
    let cut = |width| cut_line(line(), width).to_string();
    assert_eq!([cut(20), cut(8), cut(7), cut(6)], ["abcdefgh  ", "abcdefgh  ", "abcdef…", "abcde…"]);
    assert_eq!([cut(4), cut(3), cut(1), cut(0)], ["abc…", "ab…", "…", ""]);
}

#[test]
fn a_sentence_is_cut_behind_a_clause() {
    let sentence = "full → slow in 2.1 s: step 3 150 → 3 050, 150 steps again, loss 0.7 → 0.71";
    assert_eq!(cut_clause(sentence, 70), "full → slow in 2.1 s: step 3 150 → 3 050, 150 steps again…");
    assert_eq!(cut_clause(sentence, 16), "full → slow in …", "no clause is whole");
    assert_eq!(cut_clause(sentence, 80), sentence);
    let sentence = "full → slow in 3.3 s (start 2.5 s, first step 0.8 s): step 160 → 122, 40 steps again";
    assert_eq!(
        cut_clause(sentence, 50),
        "full → slow in 3.3 s (start 2.5 s, first step 0.8…",
        "not within parentheses"
    );
}

#[test]
fn bars_are_half_a_cell_fine() {
    let theme = Theme::shipped().unwrap().remove(0);
    let text = |share: f64, limit: Option<f64>| {
        bar(10, &[(Ratio::new(share).unwrap(), Style::new())], limit.and_then(Ratio::new), &theme).to_string()
    };
    assert_eq!(text(0.0, None), "──────────");
    assert_eq!(text(0.001, None), "╸─────────");
    assert_eq!(text(0.55, None), "━━━━━╸────");
    assert_eq!(text(1.0, Some(0.5)), "━━━━━┼━━━━");
    assert_eq!(spark(2, &[9.0, 0.0, 4.0, 4.0, f64::NAN], Style::new()).to_string(), "⡈⢁");
}

proptest! {
    #[test]
    fn widths_are_kept(text in "\\PC{0,60}", width in 0usize..40) {
        prop_assert!(cut_clause(&text, width).width() <= width);
        prop_assert!(cut(&text, width).width() <= width && cut_start(&text, width).width() <= width);
        let (start, end) = text.split_at(text.char_indices().nth(text.chars().count() / 2).map_or(0, |(at, _)| at));
        let line = Line::from(vec![Span::raw(start), Span::raw(end)]);
        let fits = line.to_string().trim_end_matches(' ').width() <= width;
        let shown = cut_line(line, width).to_string();
        prop_assert_eq!(shown.trim_end_matches(' ').width() <= width, true);
        prop_assert!(fits || width == 0 || shown.ends_with('…'), "{:?}", shown);
        prop_assert_eq!(pad(&text, width).width(), width);
        prop_assert_eq!(pad_left(&text, width).width(), width);
        prop_assert!(wrap(&text, width.max(2)).iter().all(|row| row.width() <= width.max(2)));
    }
}
