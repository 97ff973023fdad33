//! Any bytes as a client's messages to the publisher, into which the relay puts its views.
#![no_main]

#[path = "../../crates/relay/src/proxy.rs"]
mod proxy;
mod views {
    pub(crate) use relay::Views;
}

use std::sync::LazyLock;

use bytes::BytesMut;
use relay::{Senders, Slots, Views};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

/// The views of a relay without slots.
static VIEWS: LazyLock<Views> = LazyLock::new(|| {
    let dir = tempfile::tempdir().expect("a directory");
    Views::new(Slots::open(dir.path(), 18).expect("no slots"), Senders::default())
});

/// What the publisher gets of `messages`, which come in pieces of this size.
fn passed(messages: &[u8], piece: usize) -> Vec<u8> {
    let runtime = tokio::runtime::Builder::new_current_thread().build().expect("a runtime");
    runtime.block_on(async {
        let (mut says, client) = tokio::io::duplex(piece);
        let (mut hears, publisher) = tokio::io::duplex(1 << 20);
        let (said, heard) = (BytesMut::new(), BytesMut::new());
        let talk = async {
            let _ = says.write_all(messages).await;
            let _ = says.shutdown().await;
        };
        let hear = async {
            let mut heard = Vec::new();
            let _ = hears.read_to_end(&mut heard).await;
            let _ = hears.shutdown().await;
            heard
        };
        let pass = proxy::pass((client, said), (publisher, heard), &VIEWS);
        let (_, heard, passed) = tokio::join!(talk, hear, pass);
        assert!(passed.is_ok());
        heard
    })
}

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    if let Ok(text) = std::str::from_utf8(data) {
        let _ = VIEWS.put_into(text);
    }
    let Some((piece, messages)) = data.split_first() else { return };
    let whole = passed(messages, 1 << 20);
    assert_eq!(passed(messages, usize::from(*piece) + 1), whole, "it matters how the bytes are cut");
    let names_a_view = messages.windows(11).any(|found| found.eq_ignore_ascii_case(b"replication"));
    if !names_a_view {
        // A message that is not whole at the end may stay.
        assert!(messages.starts_with(&whole), "nothing is put into it");
    }
});
