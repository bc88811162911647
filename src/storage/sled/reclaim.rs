//! Owns: the space of dead bodies. A body file of which less than half is alive, or two thirds while there is little else
//! to write, is rewritten: its live bodies are written once more like those of a layer, and then the file is removed.
//!
//! The book only says which file is worth it. Whether a body is alive is looked up in sled, record by record, so an
//! inexact book never costs a body. The work is done in small steps between flushes. Readers see no difference, and
//! freezes need no file: before a value changes they save it themselves.

use std::sync::PoisonError;

use super::base::Base;
use super::bodies::{Place, VisitFault};
use crate::machine::refusal::Fault;
use crate::storage::state::kv::Changed;

/// How much of a file one step reads. A full layer brings less than half of it in bodies, and a file that is rewritten
/// frees more than half, so dead bodies never grow faster than they are removed.
const STEP_BYTES: u32 = 4 << 20;

/// How far the file that is rewritten now was read, and the files that wait to be removed.
#[derive(Debug, Default)]
pub struct Reclaim {
    pass: Option<Pass>,
    /// Nothing refers to them any more, but somebody was reading when they were to be removed.
    emptied: Vec<u32>,
}

#[derive(Debug, Clone, Copy)]
struct Pass {
    file: u32,
    next_chunk: u32,
}

/// Rewrites the next part of a file that is mostly dead. The caller has the turn to change the base. True if there is
/// more to do.
pub fn step(base: &Base, idle: bool) -> Result<bool, Fault> {
    let mut reclaim = base.bodies().reclaim.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(pass) = reclaim.pass.or_else(|| choose(base, idle)) {
        let mut alive = Changed::new();
        let visited = base.bodies().visit(pass.file, pass.next_chunk, STEP_BYTES, &mut |key, place, value| {
            let stored = base.stored(&key)?.unwrap_or_default();
            if Place::of(&key, &stored).is_ok_and(|current| current == Some(place)) {
                alive.insert(key.to_vec(), Some(value));
            }
            Ok(())
        });
        let next_chunk = visited.map_err(|fault| match fault {
            VisitFault::Body(fault) => base.body_fault(fault),
            VisitFault::Visitor(fault) => fault,
        })?;
        let emptied = next_chunk.is_none().then_some(pass.file);
        if emptied.is_some() || !alive.is_empty() {
            base.move_bodies(&alive, emptied)?;
        }
        reclaim.pass = next_chunk.map(|next_chunk| Pass { next_chunk, ..pass });
        reclaim.emptied.extend(emptied);
    }
    let mut left = Vec::new();
    for file in std::mem::take(&mut reclaim.emptied) {
        // If it cannot be removed, the next open does it: the book does not name it.
        let removed = base.bodies().remove(file).map_err(|error| Fault(format!("remove a body file: {error}")))?;
        left.extend((!removed).then_some(file));
    }
    reclaim.emptied = left;
    Ok(reclaim.pass.is_some() || !reclaim.emptied.is_empty() || choose(base, idle).is_some())
}

/// The file with the largest dead part, if it is worth it. An open file still gets new bodies.
fn choose(base: &Base, idle: bool) -> Option<Pass> {
    let book = base.bodies().book();
    let closed = book.iter().filter(|(_, extent)| extent.is_closed() && extent.is_worth_rewriting(idle));
    let (file, _) = closed.max_by_key(|(_, extent)| extent.dead * 1000 / extent.total.max(1))?;
    Some(Pass { file: *file, next_chunk: 0 })
}
