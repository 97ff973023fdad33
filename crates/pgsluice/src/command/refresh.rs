//! `pgsluice refresh`: makes the running process look at the publication now, and prints which
//! tables take part and which partitions differ.

use std::time::Duration;

use operate::control::{self, Request};

use super::from_control;
use crate::exit::Code;
use crate::failure::Failure;
use crate::subject::Subject;

/// Interval between questions whether the process has looked.
const POLL: Duration = Duration::from_millis(100);

/// Asks, and waits until the process has looked. Copying continues after that.
pub(crate) async fn refresh(subject: &Subject, patience: Duration) -> anyhow::Result<Code> {
    let name = &subject.name;
    let ask =
        async |request: &Request| control::ask(&subject.state_dir, name, request).await.map_err(from_control);
    let number = ask(&Request::Refresh).await?.refresh_number.unwrap_or_default();
    let deadline = tokio::time::Instant::now() + patience;
    loop {
        let status = ask(&Request::Status).await?.status;
        if let Some(seen) = status.as_ref().and_then(|status| status.refresh.as_ref())
            && seen.number >= number
        {
            super::say(format_args!("{name}: {} tables are replicated", seen.joined));
            for table in &seen.joining {
                super::say(format_args!("{name}: being copied: {table}"));
            }
            for waiting in &seen.waiting {
                super::say(format_args!("{name}: not replicated: {}", waiting.reason));
            }
            for partition in &seen.partitions {
                let (name_of, root) = (&partition.partition, &partition.root);
                let (what, remedy) = (&partition.what, &partition.remedy);
                super::say(format_args!("{name}: partition {name_of} of {root}: {what}; {remedy}"));
            }
            let level = seen.waiting.is_empty() && seen.partitions.is_empty();
            return Ok(if level { Code::Done } else { Code::Differs });
        }
        if tokio::time::Instant::now() >= deadline {
            let phase = status.map_or_else(String::new, |status| status.phase);
            return Err(Failure::NotLooked { name: name.clone(), phase, bound: patience }.into());
        }
        tokio::time::sleep(POLL).await;
    }
}
