//! pg_recvlogical of every major, with a slot of the relay and, beside it, one of the publisher.
//!
//! ```text
//! create --> round 0, --endpos --> round 1, SIGINT once confirmed --> round 2, --endpos --> drop
//! ```
//! Each client asks for other options of pgoutput. Both slots of a client are made when nobody
//! writes, so both streams are the same, byte by byte.

use std::path::PathBuf;
use std::thread;

use base::Lsn;
use bytes::Bytes;
use testkit::{Major, Output, Sluice, client_dir, wait_for};

use crate::load;
use crate::stage::{BOUND, End, Stage, interrupt, program, run};
use crate::stream::{assert_once, assert_same, assert_same_rows, split, without_empty};

const DB: &str = "recvlogical";

/// The options of each client, in the order of its majors.
const OPTIONS: [&[&str]; 5] = [
    &["proto_version=1"],
    &["proto_version=1", "messages=true"],
    &["proto_version=2", "binary=true"],
    &["proto_version=2", "streaming=on", "messages", "binary=off"],
    &["proto_version=2", "streaming=true", "messages=on", "binary"],
];

/// A client of one major with its two slots.
struct Client<'a> {
    stage: &'a Stage,
    major: Major,
    options: &'static [&'static str],
    dir: PathBuf,
}

impl Client<'_> {
    fn slot(&self, end: End) -> String {
        format!("{end:?}_{}", self.major).to_lowercase()
    }

    fn what(&self) -> String {
        format!("pg_recvlogical {} of {}", self.major, self.stage.publisher.major())
    }

    fn command(&self, end: End, args: &[&str]) -> std::process::Command {
        // The stream of every other client is encrypted.
        let conninfo = match end {
            End::Relay if self.major.number().is_multiple_of(2) => self.stage.encrypted(DB),
            end => self.stage.conninfo(end, DB),
        };
        let mut command = program(&client_dir(self.major).unwrap().join("bin/pg_recvlogical"));
        command.args(["--dbname", &conninfo, "--slot", &self.slot(end), "--no-loop"]).args(args);
        command
    }

    fn call(&self, end: End, args: &[&str]) -> Output {
        run(self.command(end, args))
    }

    /// Does the same at both ends. What is printed must be the same, too.
    fn call_both(&self, args: &[&str]) -> Output {
        let [publisher, relay] = End::BOTH.map(|end| {
            let output = self.call(end, args);
            let own = |text: String| {
                let port = self.stage.port(end).to_string();
                text.replace(&self.slot(end), "SLOT").replace(&port, "PORT")
            };
            Output { stdout: own(output.stdout), stderr: own(output.stderr), ..output }
        });
        let all = |output: &Output| (output.status.code(), output.stdout.clone(), output.stderr.clone());
        assert_eq!(all(&publisher), all(&relay), "{} {args:?}: publisher, relay", self.what());
        relay
    }

    fn start(&self, end: End, file: &str, more: &[&str]) -> std::process::Command {
        let file = self.dir.join(format!("{}.{file}", self.slot(end)));
        let mut command = self.command(end, &["--start", "--file", file.to_str().unwrap()]);
        command.args(["--verbose", "--status-interval=1", "--fsync-interval=1"]);
        for option in [&["publication_names=p"][..], self.options].concat() {
            command.args(["--option", option]);
        }
        command.args(more);
        command
    }

    fn received(&self, end: End, file: &str) -> Vec<Bytes> {
        let messages = split(std::fs::read(self.dir.join(format!("{}.{file}", self.slot(end)))).unwrap());
        match end {
            End::Publisher => {
                let kept = without_empty(messages.into_iter().map(|message| (message, ())));
                kept.into_iter().map(|(message, ())| message).collect()
            }
            End::Relay => messages,
        }
    }

    /// What both ends send up to `until`.
    fn receive(&self, until: Lsn, file: &str) -> [Vec<Bytes>; 2] {
        End::BOTH.map(|end| {
            let until = format!("--endpos={until}");
            let mut output = run(self.start(end, file, &[&until]));
            // The slot's last user may not be gone.
            wait_for("the slot to be free", BOUND, || {
                let is_used = output.stderr.contains("is active for PID");
                if is_used {
                    output = run(self.start(end, file, &[&until]));
                }
                Ok(!is_used)
            })
            .unwrap();
            assert!(output.status.success(), "{} {end:?}: {output:?}", self.what());
            self.received(end, file)
        })
    }

    fn follow(&self, file: &str) -> [Sluice; 2] {
        End::BOTH.map(|end| Sluice::start(self.start(end, file, &[])).unwrap())
    }

    /// Interrupts both when they have confirmed everything up to `until`.
    fn interrupt(&self, followers: &mut [Sluice; 2], until: Lsn, file: &str) -> [Vec<Bytes>; 2] {
        let mut ends = Vec::new();
        for (end, follower) in End::BOTH.into_iter().zip(followers) {
            let what = format!("{} to confirm at the {end:?}", self.what());
            let confirmed = wait_for(&what, BOUND, || {
                assert_running(follower, &what);
                Ok(flushed(&follower.stderr()) >= until)
            });
            confirmed
                .unwrap_or_else(|error| panic!("{error}: {}\n{}", follower.stderr(), self.stage.relay_log()));
            interrupt(follower);
            let status = follower.wait(BOUND).unwrap();
            ends.push(status.expect("it ends at SIGINT").code());
        }
        assert_eq!(ends[0], ends[1], "{}: exit codes after SIGINT", self.what());
        End::BOTH.map(|end| self.received(end, file))
    }
}

fn assert_running(follower: &mut Sluice, what: &str) {
    assert!(follower.is_running(), "{what}: {}", follower.stderr());
}

/// The last position that pg_recvlogical has confirmed as flushed, by its `--verbose`.
fn flushed(stderr: &str) -> Lsn {
    let last = stderr.lines().rev().find_map(|line| line.split_once("flush to ")?.1.split(' ').next());
    last.and_then(|lsn| lsn.parse().ok()).unwrap_or(Lsn::INVALID)
}

/// Does something with all clients at the same time.
fn each<T: Send>(clients: &[Client<'_>], act: impl Fn(&Client<'_>) -> T + Sync) -> Vec<T> {
    thread::scope(|scope| {
        let act = &act;
        let begun: Vec<_> = clients.iter().map(|client| scope.spawn(move || act(client))).collect();
        begun
            .into_iter()
            .map(|thread| thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)))
            .collect()
    })
}

#[test]
fn pg_recvlogical_receives_what_the_publisher_sends() {
    Major::each(1, |major| {
        let (stage, dir) = (Stage::of(major), tempfile::tempdir().unwrap());
        let publisher = &stage.publisher;
        stage.database(DB, load::TABLES);
        let clients = Major::ALL.into_iter().zip(OPTIONS);
        let clients: Vec<Client<'_>> = clients
            .map(|(major, options)| Client { stage: &stage, major, options, dir: dir.path().to_owned() })
            .collect();
        each(&clients, |client| {
            client.call_both(&["--create-slot", "--plugin=pgoutput"]);
            let again = client.call_both(&["--create-slot", "--plugin=pgoutput"]);
            assert!(again.stderr.contains("already exists"), "{again:?}");
            client.call_both(&["--create-slot", "--plugin=pgoutput", "--if-not-exists"]).expect_success();
        });
        let mut received: Vec<Vec<[Vec<Bytes>; 2]>> = Vec::new();
        load::write(publisher, DB, 0);
        let end = stage.end();
        received.push(each(&clients, |client| client.receive(end, "first")));
        let mut followers: Vec<[Sluice; 2]> = clients.iter().map(|client| client.follow("second")).collect();
        load::write(publisher, DB, 1);
        let end = stage.end();
        let followed = clients.iter().zip(&mut followers);
        received.push(followed.map(|(client, both)| client.interrupt(both, end, "second")).collect());
        load::write(publisher, DB, 2);
        let end = stage.end();
        received.push(each(&clients, |client| client.receive(end, "third")));
        for (number, client) in clients.iter().enumerate() {
            let mut all = Vec::new();
            for (round, received) in received.iter_mut().enumerate() {
                let [publisher, relay] = &received[number];
                let compare = if round == 0 { assert_same } else { assert_same_rows };
                compare(&format!("{}, round {round}", client.what()), publisher, relay);
                all.push(std::mem::take(&mut received[number][1]));
            }
            assert_once(&client.what(), &all);
        }
        assert_eq!(stage.slots_of_the_relay(DB), "", "{major}: the relay leaves no logical slot there");
        each(&clients, |client| {
            client.call_both(&["--drop-slot"]).expect_success();
            let again = client.call_both(&["--drop-slot"]);
            assert!(again.stderr.contains("does not exist"), "{again:?}");
        });
    });
}
