//! Hand-written SQL by theme, in `themes/`. Each theme has its own range of WAL and is compared in
//! every form.
//!
//! A file has statements that end with `;` at the end of a line, and comments with directives:
//!
//! ```text
//! --! since 16             not on older majors
//! --! publications a, b    what is decoded; the theme's own name unless said
//! --! range                what came before prepares; what follows is compared
//! --! session b            who says the next statements; a, unless said
//! --! error                the next statement must fail
//! --! crash                the server stops at once and recovers; all sessions are gone
//! ```
//!
//! A theme has a schema of its own name, which its sessions use.

use std::collections::BTreeMap;
use std::path::PathBuf;

use catalog::Catalog;
use output::Streaming;
use testkit::Major;

use crate::compare::{Tally, compare};
use crate::message::Sent;
use crate::stage::{DB, Form, Ours, PLAIN, Stage, TWO_PHASE, Talk, builder};

enum Step {
    Say(String),
    Session(String),
    Error,
    Crash,
}

struct Theme {
    name: String,
    since: u32,
    publications: Vec<String>,
    prepare: Vec<Step>,
    range: Vec<Step>,
}

fn directory() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/conformance/themes")
}

fn themes() -> Vec<Theme> {
    let mut themes = Vec::new();
    for entry in std::fs::read_dir(directory()).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_stem().unwrap().to_string_lossy().into_owned();
        themes.push(read(name, &std::fs::read_to_string(path).unwrap()));
    }
    themes.sort_by(|a, b| a.name.cmp(&b.name));
    themes
}

fn read(name: String, text: &str) -> Theme {
    let mut theme =
        Theme { publications: vec![name.clone()], name, since: 15, prepare: Vec::new(), range: Vec::new() };
    let (mut in_range, mut statement) = (false, String::new());
    for line in text.lines() {
        let Some(directive) = line.strip_prefix("--! ") else {
            if !line.starts_with("--") {
                statement.push_str(line);
                statement.push('\n');
            }
            if line.ends_with(';') {
                let steps = if in_range { &mut theme.range } else { &mut theme.prepare };
                steps.push(Step::Say(std::mem::take(&mut statement).trim().to_owned()));
            }
            continue;
        };
        let (word, rest) = directive.split_once(' ').unwrap_or((directive, ""));
        let steps = if in_range { &mut theme.range } else { &mut theme.prepare };
        match word {
            "since" => theme.since = rest.parse().unwrap(),
            "publications" => theme.publications = rest.split(", ").map(str::to_owned).collect(),
            "range" => in_range = true,
            "session" => steps.push(Step::Session(rest.to_owned())),
            "error" => steps.push(Step::Error),
            "crash" => steps.push(Step::Crash),
            _ => panic!("{}: {line}", theme.name),
        }
    }
    assert!(statement.trim().is_empty(), "{}: no end: {statement}", theme.name);
    theme
}

fn forms(theme: &Theme, major: Major) -> Vec<Form> {
    let publications: Vec<&str> = theme.publications.iter().map(String::as_str).collect();
    let new = |name, slot, proto| Form::new(name, slot, proto, &publications).messages();
    let (proto, parallel) = if major >= Major::V16 { (4, Streaming::Parallel) } else { (3, Streaming::On) };
    vec![
        new("v1, text", PLAIN, 1),
        new("v1, binary, spilled", PLAIN, 1).binary().memory(1 << 10),
        new("v2, streamed", PLAIN, 2).streaming(Streaming::On).memory(1 << 10),
        new("two-phase, streamed", TWO_PHASE, proto).streaming(parallel).memory(1 << 10),
        new("two-phase, binary", TWO_PHASE, 3).binary(),
    ]
}

struct Play<'a> {
    stage: &'a mut Stage,
    name: String,
    sessions: BTreeMap<String, Talk>,
}

impl Play<'_> {
    fn run(&mut self, steps: &[Step]) {
        let (mut who, mut must_fail) = ("a".to_owned(), false);
        for step in steps {
            match step {
                Step::Session(name) => who.clone_from(name),
                Step::Error => must_fail = true,
                Step::Crash => {
                    self.stage.position();
                    self.sessions.clear();
                    self.stage.crash();
                }
                Step::Say(sql) => {
                    let talk = self.sessions.entry(who.clone()).or_insert_with(|| {
                        let talk = self.stage.talk();
                        talk.sql(&format!(
                            "SET search_path = {}; SET client_min_messages = 'error'",
                            self.name
                        ));
                        talk
                    });
                    let done = talk.try_sql(sql);
                    assert_eq!(done.is_err(), must_fail, "{}: {done:?} of: {sql}", self.name);
                    must_fail = false;
                }
            }
        }
    }
}

/// Decodes with every size of piece and every memory limit. The messages are the same, except for
/// where blocks are cut.
fn again(
    stage: &Stage,
    theme: &Theme,
    form: &Form,
    catalog: &Catalog,
    first: &Ours,
    bytewise: bool,
) -> usize {
    let (start, to) = (catalog.looked(), first.alone().position());
    let decode = |our_memory: usize, piece: usize| {
        let form = Form { our_memory, ..form.clone() };
        let mut ours = stage.decoder(&form, catalog.clone(), start);
        ours.read(&stage.cluster, to, piece).unwrap();
        ours
    };
    let mut count = 0;
    for our_memory in [0, 3_000, 64 << 20] {
        let mut whole = decode(our_memory, 1 << 24);
        // One byte at a time takes long.
        let pieces: &[usize] = if bytewise && our_memory == 0 { &[1, 24, 8191, 8192, 8193] } else { &[8191] };
        for &piece in pieces {
            let ours = decode(our_memory, piece);
            same(theme, form, &format!("{our_memory} bytes, pieces of {piece}"), &ours.sent, &whole.sent);
            count += 1;
        }
        if form.streaming == Streaming::Off {
            same(theme, form, &format!("{our_memory} bytes"), &whole.sent, &first.kept);
        } else {
            let mut side = crate::told::Side::default();
            side.read(&first.kept).unwrap();
            if let Err(difference) = compare(&whole.items().unwrap(), &side.take()) {
                panic!("{}, {}: {our_memory}: {difference}", theme.name, form.name)
            }
        }
        count += 1;
    }
    count
}

fn same(theme: &Theme, form: &Form, how: &str, ours: &[Sent], others: &[Sent]) {
    let at = ours.iter().zip(others).position(|(ours, other)| ours != other);
    let at = at.or_else(|| (ours.len() != others.len()).then_some(ours.len().min(others.len())));
    assert!(at.is_none(), "{}, {}, {how}: message {at:?} is another", theme.name, form.name);
}

#[test]
fn themes_are_decoded_as_the_server_does() {
    let majors: Vec<_> = Major::in_turn().into_iter().filter(|major| *major >= Major::V15).collect();
    std::thread::scope(|scope| {
        let walks: Vec<_> = majors.iter().map(|major| scope.spawn(|| play(*major))).collect();
        walks.into_iter().for_each(|walk| walk.join().unwrap());
    });
}

fn play(major: Major) {
    let cluster = builder(major).start().unwrap();
    let mut stage = Stage::new(cluster, &[]);
    let only = std::env::var("PGSLUICE_CONFORMANCE_THEME").ok();
    let (mut all, mut count) = (Tally::default(), 0);
    for theme in themes() {
        if only.as_ref().is_some_and(|only| *only != theme.name) {
            continue;
        }
        if theme.since > major.number() {
            println!("{major}: {}: since {}", theme.name, theme.since);
            continue;
        }
        stage.cluster.sql(DB, &format!("CREATE SCHEMA {}", theme.name)).unwrap();
        let mut play = Play { stage: &mut stage, name: theme.name.clone(), sessions: BTreeMap::new() };
        play.run(&theme.prepare);
        let to = play.stage.position();
        play.stage.confirm(to);
        let forms = forms(&theme, major);
        let catalog = play.stage.begin(&forms);
        play.run(&theme.range);
        drop(play);
        let compared = stage.compare(1 << 20, None);
        let (to, tally) =
            compared.unwrap_or_else(|difference| panic!("{major}: {}: {difference}", theme.name));
        assert!(tally.rows + tally.others > 0, "{major}: {} compares nothing", theme.name);
        for (at, (form, ours)) in forms.iter().zip(&stage.ours).enumerate() {
            // Each theme in another form.
            let bytewise = at == theme.name.len() % forms.len();
            count += again(&stage, &theme, form, &catalog, ours, bytewise);
        }
        stage.confirm(to);
        // A publication of all tables would forbid some statements of the following themes.
        let drop = "SELECT format('DROP PUBLICATION %I', pubname) FROM pg_publication";
        for row in stage.cluster.sql(DB, drop).unwrap() {
            stage.cluster.sql(DB, row[0].as_ref().unwrap()).unwrap();
        }
        let to = stage.position();
        stage.confirm(to);
        all += tally;
        println!("{major}: {}: {tally:?}", theme.name);
    }
    println!("{major}: {all:?}; decoded {count} times more");
}
