//! Where the instructions of a function were written.

use std::collections::HashMap;

use super::Pc;

/// The places that `.loc` says, in the order of the instructions.
#[derive(Clone, Debug, Default)]
pub(crate) struct Locations {
    /// File and line of what stands at an instruction and after it.
    list: Vec<(Pc, u32, u32)>,
    /// The lines at which what follows such a place was inlined, where it was.
    inlined: HashMap<Pc, Vec<u32>>,
}

impl Locations {
    /// Takes the place of what follows, and the lines at which it was inlined, from the inside out.
    pub(crate) fn push(&mut self, pc: Pc, (file, line): (u32, u32), inlined_at: Vec<u32>) {
        self.list.push((pc, file, line));
        if inlined_at.is_empty() {
            self.inlined.remove(&pc);
        } else {
            self.inlined.insert(pc, inlined_at);
        }
    }

    /// The file of the first place.
    pub(crate) fn first_file(&self) -> Option<u32> {
        self.list.first().map(|place| place.1)
    }

    fn before(&self, pc: Pc) -> Option<(Pc, u32, u32)> {
        let index = self.list.partition_point(|place| place.0 <= pc).checked_sub(1)?;
        Some(self.list[index])
    }

    /// File and line of an instruction.
    pub(crate) fn at(&self, pc: Pc) -> Option<(u32, u32)> {
        self.before(pc).map(|(_, file, line)| (file, line))
    }

    /// The lines at which an instruction was inlined.
    pub(crate) fn inlined_at(&self, pc: Pc) -> &[u32] {
        self.before(pc).and_then(|place| self.inlined.get(&place.0)).map_or(&[], Vec::as_slice)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_place_before_an_instruction_is_its_own() {
        let mut locations = Locations::default();
        assert_eq!(locations.at(3), None);
        locations.push(1, (1, 10), vec![20, 30]);
        locations.push(4, (1, 11), vec![21]);
        locations.push(4, (1, 12), Vec::new());
        assert_eq!((locations.at(0), locations.at(3), locations.at(9)), (None, Some((1, 10)), Some((1, 12))));
        assert_eq!((locations.inlined_at(2), locations.inlined_at(5)), (&[20, 30][..], &[][..]));
    }
}
