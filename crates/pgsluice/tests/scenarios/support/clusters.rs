//! The pair of clusters per major that the scenarios of a process share.

use std::process::{Command, Stdio};
use std::sync::{Mutex, OnceLock};

use testkit::{Builder, Cluster, Major, Pair};

/// The pair of `major` that scenarios share. Values of statics are never dropped. So the servers
/// stop with this process, their parent, and a shell that waits for its end then removes their
/// directories.
pub(super) fn shared(major: Major) -> &'static Pair {
    static PAIRS: [OnceLock<Pair>; Major::ALL.len()] = [const { OnceLock::new() }; Major::ALL.len()];
    static JANITORS: Mutex<Vec<std::process::Child>> = Mutex::new(Vec::new());
    PAIRS[major as usize].get_or_init(|| {
        let with = |builder: Builder| {
            let builder = builder.setting("max_replication_slots", "100").setting("max_wal_senders", "100");
            // From 18 on origins have a limit of their own.
            if major >= Major::V18 {
                builder.setting("max_active_replication_origins", "100")
            } else {
                builder
            }
        };
        let (source, target) = (with(Cluster::builder(major)), with(Cluster::builder(major)));
        let pair = Pair::with(source, target).expect("two clusters");
        if std::env::var_os("PGSLUICE_TEST_KEEP").is_none() {
            let dirs =
                [&pair.source, &pair.target].map(|cluster| cluster.data_dir().parent().unwrap().to_owned());
            let locks = dirs.clone().map(|dir| dir.with_extension("lock"));
            let janitor = Command::new("sh")
                .args(["-c", "cat; until rm -rf -- \"$@\" 2>/dev/null; do sleep 0.1; done", "janitor"])
                .args(dirs)
                .args(locks)
                .arg(pair.state_dir())
                .stdin(Stdio::piped())
                .stdout(Stdio::null())
                .stderr(Stdio::null())
                .spawn();
            JANITORS.lock().unwrap().push(janitor.expect("a shell"));
        }
        pair
    })
}
