//! Statements of one session in a row, answered together.

use std::sync::Arc;

use client::{Pipeline, PipelineResult, Wire};
use plan::{Misfit, PIECE, Statement, sql::Shape};

use super::prepared::{Prepared, Setback};
use crate::error::{Error, Kind, is_transient};
use crate::write::{Writer, Writing};

/// Statements in flight. New ones are prepared, all are executed in order, and their results are
/// read together.
pub(super) struct Sending<'w> {
    pub(super) pipeline: Pipeline<'w>,
    prepared: &'w mut Prepared,
    fresh: Vec<Arc<Shape>>,
    /// Rows each statement must report.
    pub(super) expected: Vec<u64>,
    /// How many of them were compared with the reports, and whether all of these matched.
    checked: usize,
    as_expected: bool,
}

impl<'w> Sending<'w> {
    pub(super) async fn start(wire: &'w mut Wire, prepared: &'w mut Prepared) -> Result<Self, client::Error> {
        let pipeline = wire.pipeline().await?;
        Ok(Sending {
            pipeline,
            prepared,
            fresh: Vec::new(),
            expected: Vec::new(),
            checked: 0,
            as_expected: true,
        })
    }

    pub(super) fn push(&mut self, statement: &Statement) {
        let shape = &statement.shape;
        let known = !shape.name.is_empty()
            && (self.prepared.names.contains(&shape.name)
                || self.fresh.iter().any(|fresh| fresh.name == shape.name));
        if !known {
            self.pipeline.prepare(&shape.name, &shape.sql, &shape.parameter_types);
            self.fresh.push(Arc::clone(shape));
        }
        let name = &shape.name;
        match statement.copy_rows() {
            Some(mut rows) => self.pipeline.execute_copy(name, |out| rows.put(out)),
            None => self.pipeline.execute(name, statement.byte_len(), |out| statement.put(out)),
        }
        self.expected.push(statement.rows_expected);
    }

    /// Like `push`, and sends what has gathered if that is much: the server begins while the next
    /// statement is made.
    pub(super) async fn push_and_flush(&mut self, statement: &Statement) -> Result<(), client::Error> {
        self.push(statement);
        if self.pipeline.byte_len() >= PIECE / 2 { self.pipeline.flush().await } else { Ok(()) }
    }

    /// Sends the statements of `writing`; false if a change fits no statement.
    pub(super) async fn send(
        &mut self,
        writer: &mut Writer,
        writing: &mut Writing,
    ) -> Result<bool, client::Error> {
        loop {
            match writer.next(writing) {
                Ok(Some(statement)) => {
                    self.push_and_flush(&statement).await?;
                    writer.reuse(statement);
                    if writing.is_paced() && !self.keep_up_as_expected().await? {
                        return Ok(true);
                    }
                }
                Ok(None) => return Ok(true),
                Err(Misfit) => return Ok(false),
            }
        }
    }

    /// Waits until few enough statements are in flight that the pages read ahead for them are still
    /// in memory when the server reaches them; false after an error.
    pub(super) async fn keep_up(
        &mut self,
        watch: impl FnMut(&PipelineResult),
    ) -> Result<bool, client::Error> {
        self.pipeline.keep_up(prefetch::UNFINISHED, watch).await
    }

    /// The same; false also if a statement has not reported the rows that it must.
    pub(super) async fn keep_up_as_expected(&mut self) -> Result<bool, client::Error> {
        let holds = self.keep_up(|_| ()).await?;
        let rows = &self.pipeline.known().rows;
        self.as_expected &= rows[self.checked..] == self.expected[self.checked..rows.len()];
        self.checked = rows.len();
        Ok(holds && self.as_expected)
    }

    pub(super) async fn finish(self) -> Result<(PipelineResult, Vec<u64>), client::Error> {
        self.finish_watched(|_| ()).await
    }

    /// Finishes and checks that each statement reports what it must. `fits` says whether all
    /// necessary statements were sent. Returns the number of rows written. The first `prologue`
    /// statements are no sets.
    pub(super) async fn written(self, prologue: usize, fits: bool) -> Result<u64, Setback> {
        let result = self.answers(prologue, fits).await?;
        Ok(result.rows.iter().sum())
    }

    /// The same; returns the answers.
    pub(super) async fn answers(self, prologue: usize, fits: bool) -> Result<PipelineResult, Setback> {
        let (result, expected) = self.finish().await.map_err(|error| Setback::Broken(error.into()))?;
        if let Some(error) = &result.error {
            if result.rows.len() < prologue {
                return Err(Setback::Broken(Kind::Statement { what: "BEGIN", error: error.clone() }.into()));
            }
            tracing::debug!(code = %error.code, "a set failed: {}", error.message);
            return Err(Setback::Failed(error.code.clone()));
        }
        if !fits || result.rows != expected {
            return Err(Setback::Unexpected);
        }
        Ok(result)
    }

    /// Finishes, and shows `watch` the results known so far whenever answers come.
    pub(super) async fn finish_watched(
        self,
        watch: impl FnMut(&PipelineResult),
    ) -> Result<(PipelineResult, Vec<u64>), client::Error> {
        let result = self.pipeline.run_watched(watch).await?;
        // Statements are prepared in order, and a rollback does not undo that.
        for shape in self.fresh.into_iter().take(result.prepared).filter(|shape| !shape.name.is_empty()) {
            self.prepared.names.insert(shape.name.clone());
            if shape.by_index.is_some() {
                self.prepared.unseen.push(shape);
            }
        }
        if let Some(error) = &result.error
            && is_transient(&error.code)
        {
            tracing::debug!(code = %error.code, "{}", error.message);
        }
        Ok((result, self.expected))
    }
}

/// One round trip: prepares new statements and executes all.
pub(super) async fn run(
    wire: &mut Wire,
    prepared: &mut Prepared,
    statements: &[&Statement],
) -> Result<PipelineResult, Error> {
    let mut sending = Sending::start(wire, prepared).await?;
    statements.iter().for_each(|statement| sending.push(statement));
    Ok(sending.finish().await?.0)
}
