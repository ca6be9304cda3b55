use super::{LateAnswer, may_have_pixels};
use crossterm::event::{Event, KeyCode, KeyEvent, KeyModifiers};
use std::time::{Duration, Instant};

fn keys(text: &str) -> Vec<Event> {
    let mut events = Vec::new();
    let mut letters = text.chars();
    while let Some(letter) = letters.next() {
        let (letter, modifiers) = match letter {
            '\u{1b}' => (letters.next().unwrap(), KeyModifiers::ALT),
            letter => (letter, KeyModifiers::NONE),
        };
        events.push(Event::Key(KeyEvent::new(KeyCode::Char(letter), modifiers)));
    }
    events
}

#[test]
fn no_letter_of_a_late_answer_acts_on_the_run() {
    let now = Instant::now();
    let passed =
        |late: &mut LateAnswer, text: &str, now| keys(text).iter().filter(|event| !late.holds(event, now)).count();
    let answer = "\u{1b}P>|xterm.js(5.5.0)\u{1b}\\";
    let mut late = LateAnswer::new(true, now);
    assert_eq!(passed(&mut late, &format!("c{answer}pc"), now), 3);
    // An answer without an end does not swallow keys for ever.
    assert!(passed(&mut late, &format!("\u{1b}P{}", "c".repeat(100)), now) > 30);
    // Alt-P is a key again once no answer can come.
    assert_eq!(passed(&mut late, answer, now + Duration::from_mins(1)), keys(answer).len());
    assert_eq!(passed(&mut LateAnswer::new(false, now), answer, now), keys(answer).len());
}

#[test]
fn basic_terminals_are_not_asked() {
    let asked = |term: &'static str, tmux: bool| {
        may_have_pixels(move |name| match name {
            "TERM" => Some(term.to_owned()),
            "TMUX" => tmux.then(|| "/tmp/tmux,1,0".to_owned()),
            _ => None,
        })
    };
    assert!(["xterm-256color", "xterm-kitty", "foot"].into_iter().all(|term| asked(term, false)));
    assert!(["", "linux", "dumb", "vt100", "screen-256color"].into_iter().all(|term| !asked(term, false)));
    assert!(asked("screen-256color", true));
}
