//! The sessions that write on both ends: the source's, and the target's own client.

use rand::Rng;
use rand::rngs::StdRng;
use rand::seq::SliceRandom;
use testkit::wait_for;

use super::outcome::Outcome;
use super::story::{Order, Story, Table, values};
use crate::MOVING_BOUND;
use crate::conn::Conn;

/// Stories of one transaction of the source, at most.
const TOGETHER_MAX: usize = 6;

/// Rows that are not in conflict, and of which some transactions change many.
const BALLAST: u32 = 2_000;
/// One in as many of these rows is changed then.
const BALLAST_PART: u32 = 5;

/// On both ends. The target's client says in `told` which of its parts it has told.
pub(crate) fn schema() -> String {
    let table =
        |table: Table| format!("CREATE TABLE {} (id int8 PRIMARY KEY, u int8 UNIQUE, v text);", table.name());
    Table::ALL.map(table).concat()
        + "CREATE TABLE ballast (id int8 PRIMARY KEY, n int8); CREATE TABLE told (id int8 PRIMARY KEY)"
}

/// On the source, once pgsluice streams.
pub(crate) fn ballast() -> String {
    format!("INSERT INTO ballast SELECT i, 0 FROM generate_series(1, {BALLAST}) i")
}

/// See the module.
pub(crate) struct Tellers {
    source: Conn,
    target: Conn,
    random: StdRng,
    /// What must come of all that was told.
    pub(crate) expected: Outcome,
}

impl Tellers {
    pub(crate) fn new(source: String, target: String, random: StdRng, expected: Outcome) -> Tellers {
        Tellers { source: Conn::new(source), target: Conn::new(target), random, expected }
    }

    /// Writes the rows on the source with which stories begin. Returns how many, and a query of how
    /// many of them are somewhere.
    pub(crate) fn begin(&mut self, stories: &[Story]) -> (i64, String) {
        let begins: Vec<Story> = stories.iter().copied().filter(|story| story.has_base()).collect();
        let mut inserts = Vec::new();
        let mut counts = Vec::new();
        for table in Table::ALL {
            let of_table = begins.iter().filter(|story| story.table() == table);
            let rows: Vec<_> = of_table.map(|story| story.base()).collect();
            let ids: Vec<String> = rows.iter().map(|(id, ..)| id.to_string()).collect();
            inserts.push(format!("INSERT INTO {} VALUES {}", table.name(), values(&rows)));
            counts.push(format!("(SELECT count(*) FROM {} WHERE id IN ({}))", table.name(), ids.join(", ")));
        }
        self.source.run(&inserts.join("; ")).expect("the source is never down");
        (begins.len() as i64, format!("SELECT {}", counts.join(" + ")))
    }

    /// Tells stories while pgsluice runs and is killed, some at a time.
    pub(crate) fn tell(&mut self, mut stories: Vec<Story>) {
        stories.shuffle(&mut self.random);
        for group in self.groups(&stories) {
            self.tell_apart(group);
        }
    }

    /// Tells stories while pgsluice applies nothing.
    pub(crate) fn tell_apart(&mut self, mut stories: Vec<Story>) {
        stories.shuffle(&mut self.random);
        let of_order = |order| stories.iter().copied().filter(move |story| story.order == order);
        of_order(Order::LocalFirst).for_each(|story| self.local(story));
        for group in self.groups(&stories) {
            self.remote(&group);
        }
        of_order(Order::RemoteFirst).for_each(|story| self.local(story));
    }

    /// Each group's stories differ in their tables or conflicts.
    fn groups(&mut self, stories: &[Story]) -> Vec<Vec<Story>> {
        let mut groups: Vec<Vec<Story>> = Vec::new();
        let mut size = 0;
        for story in stories {
            match groups.last_mut() {
                Some(last) if last.len() < size && last.iter().all(|other| story.is_unlike(*other)) => {
                    last.push(*story);
                }
                _ => {
                    size = self.random.random_range(1..=TOGETHER_MAX);
                    groups.push(vec![*story]);
                }
            }
        }
        groups
    }

    /// The target's part of a story. It is told once, whatever is killed: `told` says whether a
    /// statement whose answer was lost has committed. A row that a crash took back comes again.
    fn local(&mut self, story: Story) {
        let Some(change) = story.local() else { return };
        let id = story.id;
        let asked = format!("SELECT id FROM told WHERE id = {id}");
        let sql = format!(
            "SET synchronous_commit = on; WITH met AS ({change} RETURNING 1) \
             INSERT INTO told SELECT {id} FROM met LIMIT 1 RETURNING id"
        );
        let is_told = |conn: &mut Conn, sql: &str| conn.run(sql).is_ok_and(|rows| !rows.is_empty());
        wait_for(&change, MOVING_BOUND, || {
            Ok(is_told(&mut self.target, &asked) || is_told(&mut self.target, &sql))
        })
        .expect("the target comes back, and has the row");
    }

    /// The source's part of stories, in one transaction.
    fn remote(&mut self, stories: &[Story]) {
        let mut changes: Vec<String> = stories.iter().filter_map(|story| story.remote()).collect();
        if self.random.random_ratio(1, 4) {
            let part = self.random.random_range(0..BALLAST_PART);
            let at = self.random.random_range(0..=changes.len());
            changes.insert(at, format!("UPDATE ballast SET n = n + 1 WHERE id % {BALLAST_PART} = {part}"));
        }
        let sql = format!("BEGIN; {}; SELECT pg_current_xact_id(); COMMIT", changes.join("; "));
        let rows = self.source.run(&sql).expect("the source is never down");
        let xid = rows.into_iter().flatten().flatten().next().expect("a transaction id");
        self.expected.expect(&xid, stories);
    }
}
