//! The effect of each key in the help on the screen.

use crate::helper::shift::shown_step;
use crate::helper::terminal::Terminal;
use crate::helper::{wait_for, wait_status};
use downshift::cockpit::action::TABLE;
use downshift::cockpit::clipboard::osc_52;
use downshift::protocol::samples::{Confusion, Sample, SampleSet};
use downshift::store::run_dir::RunDir;
use downshift::store::samples;
use downshift::theme::Theme;
use ratatui::style::Color;

/// Returns the heading of a panel.
fn heading(screen: &str, title: &str) -> String {
    let wanted = format!("{title} ─");
    screen.lines().find(|line| line.contains(&wanted)).unwrap_or_default().to_owned()
}

/// Waits until the heading of a panel satisfies `holds`.
fn wait_heading(terminal: &Terminal, title: &str, holds: impl Fn(&str) -> bool) -> String {
    let screen = terminal.wait(title, |screen| holds(&heading(screen, title)));
    heading(&screen, title)
}

/// Reports whether a heading shows part of the run, as in `120 to 180`; `up to` refers to outliers.
fn zoomed(heading: &str) -> bool {
    heading.replace("up to", "").contains(" to ")
}

/// Each view shows its panels; Tab, Shift-Tab, Enter and Esc navigate; arrows select.
pub fn look_around(terminal: &Terminal) {
    let views: [(&str, &[&str]); 8] = [
        ("2", &["loss ─", "validation loss ─", "gradient norm ─", "learning rate ─"]),
        ("3", &["ladder ─", "rung accumulate ─"]),
        ("4", &["journal ──", "worker log ──"]),
        ("5", &["checkpoints ──", "health ──"]),
        ("6", &["runs ──", "losses ──", "config: open run → chosen run"]),
        ("7", &["samples ──", "no samples yet"]),
        ("8", &["layers: update ratio ──", "no layers yet"]),
        ("1", &["loss ──", "health ──", "ladder ──", "journal ──"]),
    ];
    for (key, headings) in views {
        terminal.press(&[key]);
        terminal.wait_words(headings);
    }
    terminal.press(&["Tab", "Enter"]);
    terminal.wait_words(&["worker RAM, "]);
    terminal.press(&["Escape"]);
    terminal.wait_words(&["loss ──", "ladder ──"]);
    // From the gauges back to the loss, which Enter maximises.
    terminal.press(&["1", "BTab", "Enter"]);
    terminal.wait("a view of its own", |screen| screen.contains("loss ──") && !screen.contains("ladder ──"));
    terminal.press(&["1", "3"]);
    terminal.wait_words(&["rung accumulate ─", "arrows choose a rung"]);
    terminal.press(&["Down"]);
    terminal.wait_words(&["rung safe ─", "differences from accumulate"]);
    terminal.press(&["Up", "k"]);
    terminal.wait_words(&["rung full ─"]);
    terminal.press(&["j", "j"]);
    terminal.wait_words(&["rung safe ─"]);
    terminal.press(&["Enter"]);
    terminal.wait_words(&["shift down: accumulate → safe", "Esc back"]);
    terminal.press(&["u"]);
    terminal.wait_words(&["shift up: accumulate → full"]);
    terminal.press(&["Escape"]);
    terminal.wait("the ladder", |screen| screen.contains("ladder ─") && !screen.contains("╭ shift"));
    terminal.press(&["1"]);
    terminal.wait_words(&["journal ──"]);
}

/// A click on a tab opens its view; `i` chooses the kinds of the journal; `!` lists the alerts.
pub fn use_tabs_and_journal(terminal: &Terminal) {
    let screen = terminal.wait_words(&["1 overview"]);
    let (row, line) = screen.lines().enumerate().find(|(_, line)| line.contains("1 overview")).unwrap();
    let column = line[..line.find(" 4").unwrap()].chars().count();
    terminal.click(column + 1, row);
    terminal.wait_words(&["worker log ──", "4 log"]);
    terminal.press(&["i"]);
    wait_heading(terminal, "journal", |line| line.contains("faults and warnings"));
    terminal.press(&["Escape"]);
    wait_heading(terminal, "journal", |line| !line.contains("faults and warnings"));
    terminal.press(&["!"]);
    terminal.wait_words(&["╭ alerts", "Esc close"]);
    terminal.press(&["Escape"]);
    terminal.wait("no alerts box", |screen| !screen.contains("╭ alerts"));
    terminal.press(&["1"]);
    terminal.wait_words(&["loss ──"]);
}

/// Writes two sets of samples as a task does; their pictures and the matrix are shown, and nothing of the question to
/// the terminal.
pub fn see_samples(terminal: &Terminal, run: &RunDir) {
    let (red, green) = ([200, 40, 30], [30, 160, 60]);
    write_set(run, 10, red);
    write_set(run, 20, green);
    let coloured = |[r, g, b]: [u8; 3]| format!("8;2;{r};{g};{b}");
    let is_shown = |colour| terminal.coloured().contains(&coloured(colour));
    terminal.press(&["7"]);
    let screen = terminal.wait_words(&["step 20   2 of 2   newest", "4 → 9", "87 %", "1 of 2   digit 0   label 4"]);
    assert!(!screen.contains("1337;") && !screen.contains("_G") && !screen.contains(">|"), "{screen}");
    wait_for("a green picture", || (is_shown(green) && !is_shown(red)).then_some(()));
    terminal.press(&["Left", "Down"]);
    terminal.wait_words(&["step 10   1 of 2", "2 of 2   digit 1"]);
    wait_for("a red picture", || (is_shown(red) && !is_shown(green)).then_some(()));
    terminal.press(&["Enter"]);
    terminal.wait("it alone", |screen| screen.contains("digit 1") && !screen.contains("confusion ──"));
    terminal.press(&["Escape", "Tab"]);
    terminal.wait_words(&["confusion ──", "90 % right, 18 of 20", "2 ×  4 taken for 9"]);
    terminal.press(&["Escape", "1"]);
    terminal.wait_words(&["journal ──"]);
}

fn write_set(run: &RunDir, step: u64, colour: [u8; 3]) {
    let mut png = std::io::Cursor::new(Vec::new());
    image::RgbImage::from_pixel(28, 28, image::Rgb(colour)).write_to(&mut png, image::ImageFormat::Png).unwrap();
    let sample = |digit: u64| Sample {
        name: Some(format!("digit {digit}")),
        label: Some("4".to_owned()),
        answer: Some("9".to_owned()),
        confidence: Some(0.87),
        ..Sample::default()
    };
    let confusion = Confusion { classes: vec!["4".to_owned(), "9".to_owned()], counts: vec![vec![8, 2], vec![0, 10]] };
    let set = SampleSet { step, samples: vec![sample(0), sample(1)], confusion: Some(confusion) };
    let png = png.into_inner();
    samples::write(run.path(), set, &[(0, png.clone()), (1, png)]).unwrap();
}

/// Zoom, pan, fit, follow, scale, smoothing, axis and cursor, on the loss alone.
pub fn use_chart(terminal: &Terminal, run: &RunDir) {
    wait_status(run, "enough steps to zoom", |status| status.step > 200);
    terminal.press(&["2", "Enter"]);
    terminal.wait("the loss alone", |screen| screen.contains("loss ──") && !screen.contains("gradient norm ─"));
    terminal.press(&["+"]);
    wait_heading(terminal, "loss", zoomed);
    terminal.press(&["-", "-"]);
    wait_heading(terminal, "loss", |line| !zoomed(line));
    terminal.press(&["="]);
    let near = wait_heading(terminal, "loss", zoomed);
    terminal.press(&["Left"]);
    let older = wait_heading(terminal, "loss", |line| zoomed(line) && line != near);
    // Away from the newest step the window stops following.
    terminal.press(&["Right"]);
    wait_heading(terminal, "loss", |line| zoomed(line) && line != older);
    terminal.press(&["0"]);
    wait_heading(terminal, "loss", |line| !zoomed(line));
    terminal.press(&["f"]);
    wait_heading(terminal, "loss", zoomed);
    terminal.press(&["f"]);
    wait_heading(terminal, "loss", |line| !zoomed(line));
    terminal.press(&["l"]);
    wait_heading(terminal, "loss", |line| line.contains(" log "));
    terminal.press(&["l", "s"]);
    wait_heading(terminal, "loss", |line| line.contains("smoothing 0.97") && !line.contains(" log "));
    terminal.press(&["v"]);
    let reads = |line: &str| line.contains("step ");
    let newest = wait_heading(terminal, "loss", reads);
    terminal.press(&["Left"]);
    wait_heading(terminal, "loss", |line| reads(line) && line != newest);
    terminal.press(&["b"]);
    wait_heading(terminal, "loss", |line| line.contains(" samples  "));
    terminal.press(&["b"]);
    wait_heading(terminal, "loss", |line| line.contains(':'));
    terminal.press(&["b"]);
    wait_heading(terminal, "loss", reads);
    terminal.press(&["v"]);
    wait_heading(terminal, "loss", |line| !reads(line));
    terminal.press(&["Enter"]);
    terminal.wait_words(&["gradient norm ─"]);
}

/// Pages through the charts, forward and back.
pub fn page_charts(terminal: &Terminal, large: bool) {
    // The last chart comes into view, on a large screen beside most of the others.
    let further = if large { "CPU ─" } else { "step time ─" };
    for (next, before) in [("n", "N"), ("NPage", "PPage")] {
        terminal.press(&[next]);
        terminal.wait_words(&[further]);
        terminal.press(&[before]);
        terminal.wait("the first charts", |screen| screen.contains("gradient norm ─") && !screen.contains(further));
    }
}

/// Goes back in time in small and large steps, plays, and returns to now.
pub fn replay(terminal: &Terminal) {
    terminal.press(&["1", "g"]);
    let screen = terminal.wait_words(&["◐ at ", "the past"]);
    let now = shown_step(&screen).unwrap();
    terminal.press(&["PPage", "PPage", "PPage"]);
    let screen = terminal.wait("an earlier step", |screen| {
        screen.contains("◐ at ") && shown_step(screen).is_some_and(|then| then < now * 9 / 10)
    });
    let then = shown_step(&screen).unwrap();
    terminal.press(&["Left", "Left"]);
    terminal.wait("a little earlier", |screen| shown_step(screen).is_some_and(|earlier| earlier < then));
    terminal.press(&["Right", "NPage"]);
    terminal.wait("later", |screen| shown_step(screen).is_some_and(|later| later > then));
    terminal.press(&["c"]);
    terminal.wait_words(&["this is the past"]);
    let screen = terminal.screen();
    let before = shown_step(&screen).unwrap();
    terminal.press(&["Space"]);
    terminal.wait("it plays", |screen| shown_step(screen).is_some_and(|later| later > before));
    terminal.press(&["Escape"]);
    terminal.wait_words(&["● training"]);
}

/// `C` copies into tmux's buffer; `e` and `E` write the chart beside the run.
pub fn copy_and_export(terminal: &Terminal, run: &RunDir) {
    terminal.press(&["2"]);
    terminal.wait_words(&["loss ──"]);
    terminal.press(&["C"]);
    terminal.wait_words(&["copied: loss "]);
    let value = wait_for("the copy", || terminal.copied()).strip_prefix("loss ").unwrap().to_owned();
    let (value, step) = value.split_once(" at step ").unwrap();
    assert!(value.parse::<f64>().is_ok_and(f64::is_finite) && step.parse::<u64>().is_ok(), "{value} {step}");
    terminal.press(&["3", "C"]);
    terminal.wait_words(&["copied: safe"]);
    assert_eq!(terminal.copied().as_deref(), Some("safe"));

    terminal.press(&["2"]);
    for (key, ending, start) in [("e", "svg", &b"<svg "[..]), ("E", "png", b"\x89PNG")] {
        terminal.press(&[key]);
        let file = run.path().with_file_name(format!("{}-loss.{ending}", run.name()));
        terminal.wait("the file's name", |screen| screen.contains("wrote "));
        let picture = wait_for("the picture", || std::fs::read(&file).ok());
        assert!(picture.starts_with(start), "{}", file.display());
    }
}

/// Without `tmux load-buffer`, tmux takes the sequence that terminals take.
pub fn copy_by_sequence(terminal: &Terminal) {
    terminal.set_option("set-clipboard", "on");
    let sequence = osc_52("by sequence", true).replace('\u{1b}', "\\033").replace('\u{7}', "\\007");
    let sequence = sequence.replace("\\033\\\\", "\\033\\\\\\\\");
    terminal.enter(&format!("printf '{sequence}'"));
    wait_for("the copy", || terminal.copied().filter(|text| text == "by sequence"));
}

/// The list of runs describes this run, and marks it as the open one.
pub fn list_runs(terminal: &Terminal) {
    terminal.press(&["6"]);
    terminal.wait("the run in its list", |screen| {
        let rows = screen.lines().filter(|line| line.contains("scripted-"));
        rows.count() >= 2 && screen.contains("training")
    });
    terminal.press(&["Space"]);
    terminal.wait_words(&["already on the chart"]);
    terminal.press(&["Tab", "BTab", "Enter"]);
    terminal.wait_words(&["this run is already open"]);
    terminal.press(&["Escape"]);
    terminal.wait_words(&["journal ──"]);
}

/// `:` finds an action by its letters; `t` switches to the next theme.
pub fn palette_and_themes(terminal: &Terminal) {
    let bar = |theme: usize| {
        let Some(Color::Rgb(red, green, blue)) = Theme::shipped().unwrap()[theme].bar.bg else { panic!("a colour") };
        format!("48;2;{red};{green};{blue}")
    };
    terminal.press(&["t"]);
    wait_for("the second theme", || terminal.coloured().contains(&bar(1)).then_some(()));
    terminal.press(&[":"]);
    terminal.wait_words(&["╭ actions", "type to search"]);
    terminal.write("next the");
    terminal.wait("the action", |screen| screen.contains("next theme") && !screen.contains("save a checkpoint"));
    terminal.press(&["Enter"]);
    wait_for("the third theme", || terminal.coloured().contains(&bar(2)).then_some(()));
    terminal.press(&["C-l"]);
    terminal.wait_words(&["● training", "journal ──"]);
    terminal.press(&[":"]);
    terminal.write("exit");
    terminal.wait_words(&["close the cockpit; the run continues"]);
    terminal.press(&["Escape"]);
    terminal.wait("no palette", |screen| !screen.contains("╭ actions"));
}

/// Ctrl-Z returns to the shell; `fg` restores the same screen.
pub fn suspend_and_resume(terminal: &Terminal) {
    terminal.press(&["C-z"]);
    terminal.wait("the shell", |screen| screen.contains("Stopped") && !screen.contains("● training"));
    terminal.enter("fg");
    terminal.wait_words(&["● training", "journal ──"]);
}

/// The help lists every action.
pub fn read_help(terminal: &Terminal) {
    terminal.press(&["?"]);
    let mut seen = String::new();
    wait_for("every action in the help", || {
        let screen = terminal.screen();
        seen.push_str(&screen);
        let all = TABLE.iter().all(|entry| seen.contains(entry.help));
        // A screen that is drawn late may skip lines, so the end leads back to the start.
        let next: &[&str] = if screen.contains("more above") { &["Escape", "?"] } else { &["Down"] };
        if !all {
            terminal.press(next);
        }
        all.then_some(())
    });
    terminal.press(&["Escape"]);
    terminal.wait("no help", |screen| !screen.contains("╭ keys"));
}
