//! The report for a browser: complete, escaped, redacted, bounded; and what a real browser makes of it.

#![expect(clippy::unwrap_used, reason = "the helpers of a test fail by panicking, as the test does")]

mod browser;
#[path = "../../examples/long_run/make.rs"]
mod make;

use crate::helper::{Place, SLOW, finish_run, kill, kill_keepers, start_run, stop_run, wait_state, wait_status};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use browser::{Browser, Shown, with_reader};
use downshift::protocol::control::RunState;
use serde_json::{Value, json};
use std::fs;
use std::path::PathBuf;
use std::process::Stdio;

/// Writes the report of the newest run; returns its path and its text.
fn report(place: &Place) -> (PathBuf, String) {
    let said = place.succeed(&["report", "--out", "r.html"]);
    assert!(said.starts_with("r.html: "), "{said}");
    let path = place.dir.path().join("r.html");
    let html = fs::read_to_string(&path).unwrap();
    (path, html)
}

/// Makes a run of this length with shifts, faults, skips, evaluations and checkpoints.
fn made_run(steps: u64) -> Place {
    let place = Place::real();
    make::long_run(&place.dir.path().join("runs"), "made", steps).unwrap();
    let store = rusqlite::Connection::open(place.newest().unwrap().file("run.db")).unwrap();
    let cause = r#"{"class":"device_out_of_memory","restart_helps":true,"evidence":["kernel log: no room"],"advice":"use less"}"#;
    store
        .execute(
            "INSERT OR REPLACE INTO causes (attempt, class, cause) VALUES (1, 'device_out_of_memory', ?1)",
            [cause],
        )
        .unwrap();
    place
}

/// Returns the data that the page's script reads.
fn data(html: &str) -> Value {
    let (_, rest) = html.split_once("<script type=\"application/json\" id=\"data\">").unwrap();
    serde_json::from_str(rest.split_once("</script>").unwrap().0).unwrap()
}

#[test]
fn a_report_holds_the_whole_run_and_loads_nothing() {
    let place = made_run(5000);
    let (_, html) = report(&place);
    for part in [
        "id=\"curves\"",
        "id=\"ladder\"",
        "id=\"faults\"",
        "id=\"attempts\"",
        "id=\"journal\"",
        "id=\"checkpoints\"",
        "id=\"machine\"",
        "id=\"config\"",
        "Out of device memory",
        "kernel log: no room",
        "Use less",
        "task: ",
    ] {
        assert!(html.contains(part), "{part}");
    }
    // The only address is the name of the SVG format, which the script needs and nothing fetches.
    let addresses: Vec<&str> = html
        .split("http")
        .skip(1)
        .map(|rest| &rest[..20])
        .filter(|rest| rest.starts_with("://") || rest.starts_with("s://"))
        .collect();
    assert_eq!(addresses, ["://www.w3.org/2000/s"], "a report loads nothing");
    assert!(html.contains("default-src 'none'; style-src 'sha256-") && !html.contains("unsafe-inline"));

    let data = data(&html);
    let loss = &data["charts"][0];
    assert_eq!((&loss["name"], &data["first"], &data["last"]), (&"loss".into(), &1.into(), &5000.into()));
    // 5 000 steps in 4 096 columns: some hold two, and no extreme is lost.
    let least = |list: &Value| list.as_array().unwrap().iter().filter_map(Value::as_f64).fold(f64::MAX, f64::min);
    let rows = place.rows();
    let newest = rows.iter().filter_map(|row| row["loss"].as_f64()).fold(f64::MAX, f64::min);
    assert!((least(&loss["low"]) - newest).abs() < newest * 1e-3, "{} {newest}", least(&loss["low"]));
    let marks = data["marks"].as_array().unwrap();
    assert!(marks.iter().any(|mark| mark["kind"] == "restart" && mark["fault"] == true), "{marks:?}");
    let lowered = marks.iter().find(|mark| mark["kind"] == "rate").expect("the learning rate was lowered");
    assert_eq!((&lowered["step"], &lowered["label"]), (&3750.into(), &"lr 2.5e-4".into()));
    assert!(lowered["text"].as_str().unwrap().ends_with("validation loss has not improved for 4 evaluations"));
    assert!(!data["skipped"].as_array().unwrap().is_empty() && !data["checkpoints"].as_array().unwrap().is_empty());
}

#[test]
fn text_of_a_run_stays_text_and_secrets_are_removed() {
    let mut place = made_run(500);
    place.variables.push(("MY_SERVICE_TOKEN", "hunter2hunter2".into()));
    let store = rusqlite::Connection::open(place.newest().unwrap().file("run.db")).unwrap();
    let hostile = "</script><img src=x onerror=alert(1)> \u{202e} & \"'";
    store.execute("UPDATE journal SET text = ?1 || text", [hostile]).unwrap();
    store
        .execute("UPDATE attempts SET rung_name = ?1, reason = ?1, outcome = 'used hunter2hunter2'", [hostile])
        .unwrap();
    store.execute("UPDATE causes SET cause = replace(cause, 'no room', ?1)", ["password: sesame1234 <b>"]).unwrap();
    drop(store);
    let (path, html) = report(&place);
    assert!(
        !html.contains("<img") && !html.contains('\u{202e}') && html.contains("&lt;img src=x onerror=alert(1)&gt;")
    );
    assert!(!html.contains("hunter2") && !html.contains("sesame") && html.contains("[removed]"));
    let Some(browser) = Browser::find() else { return };
    let shown = browser.open(&path, &[]);
    assert_eq!((shown.complaints.clone(), shown.dom.contains("<img")), (Vec::new(), false));
}

#[test]
fn samples_are_inside_the_page_and_links_are_not_followed() {
    let place = made_run(500);
    let folder = place.newest().unwrap().file("samples");
    fs::create_dir(&folder).unwrap();
    // One pixel.
    let png = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg==";
    let write = |step: u64, answer: &str| {
        let name = format!("step-{step:09}");
        let sample = json!({ "image": format!("{name}-0.png"), "label": "cat", "answer": answer, "confidence": 0.75 });
        let confusion = json!({ "classes": ["cat", "dog"], "counts": [[3, 1], [0, 4]] });
        let set = json!({ "step": step, "samples": [sample], "confusion": confusion });
        fs::write(folder.join(format!("{name}.json")), set.to_string()).unwrap();
        folder.join(format!("{name}-0.png"))
    };
    fs::write(write(400, "<b>dog</b>"), STANDARD.decode(png).unwrap()).unwrap();
    std::os::unix::fs::symlink("/etc/passwd", write(100, "owl")).unwrap();
    let (path, html) = report(&place);
    assert!(
        html.contains(&format!("src=\"data:image/png;base64,{png}\"")) && html.contains("&lt;b&gt;dog&lt;/b&gt; 75 %")
    );
    assert!(html.contains("Newest, step 400") && html.contains("<td class=\"miss\">1</td>"));
    let outside = STANDARD.encode(fs::read("/etc/passwd").unwrap());
    assert!(html.contains("owl") && !html.contains(&outside), "a picture that is a link is left out");
    assert_eq!(html.matches("data:image/png").count(), 1);
    let Some(browser) = Browser::find() else { return };
    assert_eq!(browser.open(&path, &[]).complaints, Vec::<String>::new());
}

/// Stores the layers of a model at evaluations, every 100 steps.
fn measure_layers(place: &Place, names: &[&str], evaluations: i64) {
    let mut store = rusqlite::Connection::open(place.newest().unwrap().file("run.db")).unwrap();
    let change = store.transaction().unwrap();
    change.execute("DELETE FROM layers", []).unwrap();
    for evaluation in 1..=evaluations {
        let step = evaluation * 100;
        let layer = |(place, name): (usize, &&str)| {
            let ratio = 1e-4 * 3_f64.powi(i32::try_from((place as i64 + evaluation) % 7).unwrap());
            let dead = if place == 0 { json!(0.25) } else { json!(null) };
            json!({ "name": name, "weight_norm": 1.5 + place as f64, "grad_norm": 0.5, "update_ratio": ratio,
                    "dead": dead, "non_finite": place == 1 && evaluation == 2 })
        };
        let stats = json!({ "step": step, "layers": names.iter().enumerate().map(layer).collect::<Vec<_>>() });
        let values = rusqlite::params![1, step, 1_700_000_000_000_i64 + step, stats.to_string()];
        change.execute("INSERT INTO layers (attempt, step, time_ms, layers) VALUES (?1, ?2, ?3, ?4)", values).unwrap();
    }
    change.commit().unwrap();
}

#[test]
fn the_layers_are_heat_maps_and_a_table_of_the_last_step() {
    let place = made_run(500);
    let (_, html) = report(&place);
    assert!(!html.contains("id=\"layers\"") && !html.contains("#layers"), "nothing was measured");
    measure_layers(&place, &["stem", "blocks.0.<i>query", "head"], 12);
    let (path, html) = report(&place);
    let (_, section) = html.split_once("<section id=\"layers\">").unwrap();
    let section = section.split_once("</section>").unwrap().0;
    assert!(html.contains("<a href=\"#layers\">Layers</a>") && section.contains("blocks.0.&lt;i&gt;query"));
    let maps: Vec<&str> = section.split("aria-label=\"").skip(1).map(|rest| rest.split('"').next().unwrap()).collect();
    let by_layer = ["update ratio", "gradient norm", "weight norm", "dead units"];
    assert_eq!(maps, by_layer.map(|name| format!("{name} by layer over steps")));
    assert!(section.contains("steps 100 to 1 200") && section.contains(", logarithmic</span>"), "{section}");
    // The second evaluation of the second layer, in each map.
    assert_eq!(section.matches("<rect class=\"bad\" x=\"1\" y=\"1\" width=\"1\" height=\"1\"/>").count(), 4);
    let (_, table) = section.split_once("At step 1 200</h3>").unwrap();
    let row = table.split("<tr>").find(|row| row.contains("stem")).unwrap();
    let cells: Vec<&str> =
        row.split("<td class=\"num\">").skip(1).map(|cell| cell.split('<').next().unwrap()).collect();
    assert_eq!(cells, ["0.024", "0.500", "1.500", "25 %"]);
    assert!(table.contains("<td class=\"num\">–</td>"), "dead units of a layer that has none");
    let Some(browser) = Browser::find() else { return };
    let script = "const box = document.querySelector('.heat svg').getBoundingClientRect();
        const cells = [...document.querySelectorAll('.heat svg rect')].map(cell => getComputedStyle(cell).fill);
        document.title = `heat ${Math.round(box.height)} ${box.width > 400} ${new Set(cells).size > 5}`;";
    let shown = browser.open(&with_reader(&path, script), &[]);
    assert_eq!(shown.complaints, Vec::<String>::new());
    assert!(shown.dom.contains("<title>heat 54 true true</title>"), "three rows in several colours");
    assert_eq!(browser.open(&path, &[]).complaints, Vec::<String>::new());
}

#[test]
fn the_layers_of_a_large_model_stay_small() {
    let place = made_run(500);
    let (_, before) = report(&place);
    let names: Vec<String> = (0..400).map(|block| format!("blocks.{block}.attention.query")).collect();
    measure_layers(&place, &names.iter().map(String::as_str).collect::<Vec<_>>(), 60);
    let (_, html) = report(&place);
    assert!(html.len() < before.len() + (1 << 20), "{} bytes more", html.len() - before.len());
    assert!(html.contains("200 more layers are not shown.") && html.contains("steps 100 to 6 000"));
}

#[test]
fn a_browser_draws_the_curves_and_their_marks_without_an_error() {
    let Some(browser) = Browser::find() else { return };
    let place = made_run(5000);
    let store = rusqlite::Connection::open(place.newest().unwrap().file("run.db")).unwrap();
    store.execute("UPDATE journal SET kind = '\"checkpoint\"', level = '\"info\"' WHERE id = 2", []).unwrap();
    let (path, html) = report(&place);
    let shown = browser.open(&path, &[]);
    assert_eq!(shown.complaints, Vec::<String>::new());
    let charts = data(&html)["charts"].as_array().unwrap().len();
    let first = |shown: &Shown, tag: &str| {
        shown.dom.split(tag).nth(1).map(|rest| rest[..rest.len().min(4000)].to_owned()).unwrap()
    };
    assert_eq!(shown.dom.matches("<figure class=\"chart").count(), charts);
    // A line for each chart, at least 300 points in the first.
    assert!(
        shown.count("line") > charts
            && first(&shown, "class=\"line\" d=\"").split('"').next().unwrap().matches('L').count() > 300
    );
    // The legend shows some of them once.
    for (class, least) in [
        ("band", 2),
        ("eval", 1),
        ("evaluation", 3),
        ("skip", 2),
        ("checkpoint", 2),
        ("mark restart fault", 2),
        ("mark restart fault name", 1),
        ("mark shift name", 1),
        ("best name", 1),
        ("tick", 20),
    ] {
        assert!(shown.count(class) >= least, "{class}: {}", shown.count(class));
    }
    // The journal hides its checkpoints at first, and says how many lines are left.
    assert!(shown.dom.contains("<tr data-kind=\"checkpoint\" hidden=\"\">") && shown.dom.contains(" shown</span>"));

    // The same page with one more script in it: the policy refuses it, and this test would see it.
    fs::write(&path, html.replace("</body>", "<script>document.title = 'run'</script></body>")).unwrap();
    let tampered = browser.open(&path, &[]);
    assert!(!tampered.dom.contains("<title>run</title>"));
    assert!(
        tampered.complaints.iter().any(|line| line.contains("Content Security Policy")),
        "{:?}",
        tampered.complaints
    );
}

#[test]
fn a_reader_zooms_reads_values_filters_and_changes_the_colours() {
    let Some(browser) = Browser::find() else { return };
    let place = made_run(5000);
    let (path, _) = report(&place);
    let zoom = "const svg = document.querySelector('figure.first svg'); const box = svg.getBoundingClientRect();
        const at = (kind, share) => svg.dispatchEvent(new PointerEvent(kind, { clientX: box.left + box.width * share, clientY: box.top + 90, button: 0, pointerId: 1, bubbles: true }));
        svg.setPointerCapture = () => {};
        at('pointerdown', 0.4); at('pointermove', 0.6); at('pointerup', 0.6); at('pointermove', 0.5);
        document.getElementById('theme').click();
        document.getElementById('find').value = 'nothing like this'; document.getElementById('find').dispatchEvent(new Event('input', { bubbles: true }));";
    let shown = browser.open(&with_reader(&path, zoom), &["--blink-settings=preferredColorScheme=1"]);
    assert_eq!(shown.complaints, Vec::<String>::new());
    // The axis begins near 40 % of the run, the whole run can be shown again, and the cursor reads a step.
    assert!(!shown.dom.contains(">1\u{202f}000</text>") && shown.dom.contains(">2\u{202f}500</text>"), "zoomed");
    assert!(shown.dom.contains("<button id=\"whole\" type=\"button\">"), "the whole run can be shown again");
    let readouts = shown.dom.matches("<output class=\"readout\">step 2\u{202f}").count();
    assert_eq!(readouts, shown.dom.matches("<figure class=\"chart").count(), "one cursor for all charts");
    assert!(shown.dom.contains("<html lang=\"en\" data-theme=\"dark\">"), "from light to dark");
    assert!(shown.dom.contains("no matching lines</span>"));
}

#[test]
fn a_running_run_and_an_ended_one_have_a_report() {
    let (place, mut child, _, _) = start_run(SLOW, 5000, 20);
    let (_, html) = report(&place);
    assert!(html.contains("as of ") && html.contains(">alive</span>") && html.contains(">now</span>"));
    stop_run(&place, &mut child);
    let (place, _) = finish_run();
    let (_, html) = report(&place);
    assert!(html.contains("<span class=\"state good\">finished") && !html.contains(">alive</span>"));
}

#[test]
fn a_run_without_a_usable_store_is_refused_in_a_sentence() {
    let place = made_run(500);
    let run = place.newest().unwrap();
    fs::write(run.file("run.db"), vec![7; 9000]).unwrap();
    let out = place.output(&["report"]);
    let said = String::from_utf8(out.stderr).unwrap();
    assert!(
        out.status.code() == Some(1) && said.lines().count() == 1 && said.contains("run.db cannot be read"),
        "{said}"
    );
}

#[test]
fn the_report_of_the_longest_run_is_small() {
    let place = made_run(300_000);
    let (_, html) = report(&place);
    let loss = data(&html)["charts"][0]["mean"].as_array().unwrap().len();
    assert!((1000..=4096).contains(&loss) && html.len() < 2 << 20, "{loss} columns, {} bytes", html.len());
}

#[test]
fn an_attempt_that_died_with_its_keeper_lived_until_its_last_step() {
    let (place, child, run, status) = start_run(SLOW, 4000, 300);
    kill_keepers(child, &status);
    kill(status.pid_worker.unwrap());
    wait_state(&run, RunState::Interrupted);
    let attempts = || {
        let (_, html) = report(&place);
        fs::remove_file(place.dir.path().join("r.html")).unwrap();
        let (_, rest) = html.split_once("<section id=\"attempts\">").unwrap();
        rest.split_once("</section>").unwrap().0.to_owned()
    };
    let dead = attempts();
    assert!(dead.contains("interrupted") && !dead.contains("alive") && !dead.contains(">0 s<"), "{dead}");
    let mut child = place.command(&["resume", "--headless"]).stdout(Stdio::null()).spawn().unwrap();
    wait_status(&run, "steps", |now| now.step > status.step + 60);
    stop_run(&place, &mut child);
    let both = attempts();
    assert!(both.contains("interrupted") && both.contains("ended as asked") && !both.contains(">0 s<"), "{both}");
}
