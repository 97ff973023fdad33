//! The assembler compared with the model: the same messages give the same transactions, up to the
//! same error.

use std::collections::HashMap;
use std::io::{self, Read};

use base::Xid;
use bytes::Bytes;
use proto::pgoutput::Message;
use txn::{Assembler, AssemblyError, Event, Op, Spool};

use crate::model::{Model, Seen};

/// A disk that never fails.
#[derive(Default)]
struct Memory(HashMap<Xid, Vec<u8>>);

impl Spool for Memory {
    fn append(&mut self, xid: Xid, bytes: &[u8]) -> io::Result<()> {
        self.0.entry(xid).or_default().extend_from_slice(bytes);
        Ok(())
    }

    fn read(&mut self, xid: Xid) -> io::Result<Box<dyn Read + Send>> {
        let bytes = self.0.get(&xid).ok_or(io::ErrorKind::NotFound)?;
        Ok(Box::new(io::Cursor::new(bytes.clone())))
    }

    fn remove(&mut self, xid: Xid) -> io::Result<()> {
        self.0.remove(&xid);
        Ok(())
    }

    fn scratch(&mut self) -> io::Result<std::fs::File> {
        tempfile::tempfile()
    }
}

/// The assembler's output for `messages`, up to its first error.
pub(crate) fn assembled(messages: &[Bytes], binary: bool) -> (Vec<Seen>, Option<AssemblyError>) {
    let mut assembler = Assembler::new(Box::<Memory>::default()).with_binary(binary);
    let mut seen = Vec::new();
    let error = messages.iter().try_for_each(|message| {
        assembler.push(message.clone())?;
        while let Some(event) = assembler.next()? {
            seen.extend(in_words(event));
        }
        Ok(())
    });
    (seen, error.err())
}

/// `None` for an origin, of which the model says nothing.
fn in_words(event: Event) -> Option<Seen> {
    Some(match event {
        Event::Origin(_) => return None,
        Event::Begin(begin) => Seen::Begin(begin.xid, begin.final_lsn, begin.commit_time),
        Event::Commit(commit) => Seen::Commit(commit),
        Event::Truncate(truncate) => {
            let relations = truncate.relations.iter().map(|relation| (**relation).clone());
            Seen::Truncate(relations.collect(), truncate.restart_identity)
        }
        Event::Change(change) => {
            let relation = change.relation.id;
            let message = match change.op {
                Op::Insert(new) => Message::Insert { relation, new },
                Op::Update { old, new } => Message::Update { relation, old, new },
                Op::Delete(old) => Message::Delete { relation, old },
            };
            Seen::Row((*change.relation).clone(), format!("{message:?}"))
        }
    })
}

/// Checks that assembler and model agree on `messages`. Returns whether there was an error.
pub(crate) fn agree(messages: &[Bytes], binary: bool, case: &str) -> bool {
    let mut model = Model::new(binary);
    let wrong = messages.iter().try_for_each(|message| model.feed(message)).is_err();
    let (seen, error) = assembled(messages, binary);
    assert_eq!(error.is_some(), wrong, "{case}: {error:?}");
    assert_eq!(seen, model.seen, "{case}: {error:?}");
    whole_transactions(&seen, case);
    if let Some(error) = error {
        assert!(!error.is_disk() && error.to_string().len() > 10, "{case}: {error}");
    }
    wrong
}

/// Checks the form `Begin (Row | Truncate)* Commit`, never interleaved. Only the last transaction
/// may lack its end.
fn whole_transactions(seen: &[Seen], case: &str) {
    let mut announced = None;
    for event in seen {
        match event {
            Seen::Begin(_, lsn, time) => assert_eq!(announced.replace((*lsn, *time)), None, "{case}"),
            Seen::Commit(commit) => {
                assert_eq!(announced.take(), Some((commit.commit_lsn, commit.commit_time)), "{case}");
            }
            Seen::Row(..) | Seen::Truncate(..) => assert!(announced.is_some(), "{case}"),
        }
    }
}
