// Lists one-line bugs of the leases and journals of a fleet (hub/registry), in the form of mutants.mjs.
export const mutants = [
  // ---- membership: leases by the store's clock
  {
    file: 'membership.cpp', what: 'a lease is renewed for any incarnation',
    from: '"? AND fence = ?"));\n            renew.bind', to: '"? AND fence >= ?"));\n            renew.bind',
  },
  {
    file: 'membership.cpp', what: 'a hub that enters again keeps its fence number',
    from: 'UPDATE SET fence = "\n                 "excluded.fence, ',
    to: 'UPDATE SET fence = "\n                 "hubs.fence, ',
  },
  {
    file: 'membership.cpp', what: 'a lost row is reported as a later incarnation',
    from: 'if (!exists)', to: 'if (false)',
  },
  {
    file: 'membership.cpp', what: 'a later incarnation is reported as a lost row',
    from: 'if (!exists)', to: 'if (true)',
  },
  {
    file: 'membership.cpp', what: 'any incarnation of a hub is the present one',
    from: '"SELECT 1 FROM hubs WHERE hub_id = ? AND fence = ?"', to: '"SELECT 1 FROM hubs WHERE hub_id = ? AND 0 < ?"',
  },
  // ---- stream_table: one owner of a row
  {
    file: 'stream_table.cpp', what: 'the old owner writes after a taker',
    from: '"given.stream_id WHERE streams.hub_id = ? AND streams.fence = ? FOR SHARE OF streams "',
    to: '"given.stream_id WHERE (streams.hub_id = ? OR streams.fence <> ?) FOR SHARE OF streams "',
  },
  {
    file: 'stream_table.cpp', what: 'the old owner ends a stream after a taker',
    from: '" + ? WHERE stream_id = ? AND hub_id = ? AND fence = ?"));\n    return bind(end',
    to: '" + ? WHERE stream_id = ? AND (hub_id = ? OR fence <> ?)"));\n    return bind(end',
  },
  {
    file: 'stream_table.cpp', what: 'two takers win',
    from: '" + ? WHERE stream_id = ? AND hub_id = ? AND fence = ? AND (? = 1 OR NOT EXISTS "',
    to: '" + ? WHERE stream_id = ? AND (hub_id = ? OR fence <> ?) AND (? = 1 OR NOT EXISTS "',
  },
  {
    file: 'stream_table.cpp', what: 'a hub with a lease is taken from without force',
    from: 'AND (? = 1 OR NOT EXISTS "', to: 'AND (? < 2 OR NOT EXISTS "',
  },
  {
    file: 'stream_table.cpp', what: 'an ended lease counts as living',
    from: '"WHEN hubs.fence = streams.fence AND hubs.deadline_ms > ",',
    to: '"WHEN hubs.fence = streams.fence AND 0 < ",',
  },
  {
    file: 'stream_table.cpp', what: 'an earlier incarnation counts as living',
    from: '"WHEN hubs.fence = streams.fence AND', to: '"WHEN hubs.fence >= streams.fence AND',
  },
  {
    file: 'stream_table.cpp', what: 'a stream that begins anew keeps the old pieces',
    from: '"WITH forgotten AS (DELETE FROM stream_pieces WHERE stream_id = ?) INSERT INTO streams "',
    to: '"WITH forgotten AS (DELETE FROM stream_pieces WHERE stream_id = ? AND FALSE) INSERT INTO streams "',
  },
  {
    file: 'stream_table.cpp', what: 'pieces are read in any order',
    from: 'ORDER BY "\n                     "position"', to: 'ORDER BY "\n                     "position DESC"',
  },
  {
    file: 'stream_table.cpp', what: 'nothing is swept',
    from: '"DELETE FROM streams WHERE delete_ms <= "', to: '"DELETE FROM streams WHERE FALSE AND delete_ms <= "',
  },
  // ---- stream_journal: what waits, and what another hub reads
  {
    file: 'stream_journal.cpp', what: 'records that could not be written are lost',
    from: 'return_batch(std::move(batch));\n            written_', to: '(void)batch;\n            written_',
  },
  {
    file: 'stream_journal.cpp', what: 'records that could not be written come after later ones',
    from: 'part.records.insert(part.records.end(), later.records.begin(), later.records.end());',
    to: 'part.records.insert(part.records.begin(), later.records.begin(), later.records.end());',
  },
  {
    file: 'stream_journal.cpp', what: 'the number of a piece does not count the pieces before it',
    from: '.first = part.first + part.num_records, .is_begun = true', to: '.first = part.first, .is_begun = true',
  },
  {
    file: 'stream_journal.cpp', what: 'a missing piece is not noticed',
    from: 'if (piece.position != static_cast<std::int64_t>(taken.records.size()))', to: 'if (piece.position < 0)',
  },
  {
    file: 'stream_journal.cpp', what: 'a taker numbers its records from zero',
    from: '.first = taken.records.size(), .is_begun = true', to: '.first = 0, .is_begun = true',
  },
  {
    file: 'stream_journal.cpp', what: 'the old owner does not learn that its stream was taken',
    from: 'if (is_taken) {', to: 'if (false) {',
  },
  {
    file: 'stream_journal.cpp', what: 'the bound on waiting bytes is not kept',
    from: 'if (waiting_bytes_ + record.size() > options_.waiting_bytes_max ||', to: 'if (',
  },
  {
    file: 'stream_journal.cpp', what: 'a dropped journal is stored for a while, with its gap',
    from: 'part.is_dropped ? Duration{} : options_.life_after_end', to: 'options_.life_after_end',
  },
  {
    file: 'stream_journal.cpp', what: 'records of an earlier stream with the same id wait on',
    from: 'stream = {.head = std::move(head)};', to: 'stream.head = std::move(head);',
  },
];
