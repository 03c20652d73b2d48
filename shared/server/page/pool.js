// A pool of blocks, as the records tell of it.

/** Who holds which block: tables, and the blocks that nobody holds and that keep their contents. */
export class Pool {
  constructor(size) {
    this.size = size;
    this.tables = new Map(); // sequence -> its blocks
    this.cached = new Set();
    this.owners = Array.from({ length: size }, () => []); // block -> sequences that hold it
    this.used = 0;
  }

  grow(name, place, blocks) {
    const table = this.tables.get(name) ?? [];
    for (const block of table.splice(place)) this.#leave(block, name);
    for (const block of blocks) {
      if (!this.owners[block].length) this.used += 1;
      this.owners[block].push(name);
      this.cached.delete(block);
    }
    this.tables.set(name, table.concat(blocks));
  }

  drop(name, cached) {
    for (const block of this.tables.get(name) ?? []) this.#leave(block, name);
    this.tables.delete(name);
    for (const block of cached) if (!this.owners[block].length) this.cached.add(block);
  }

  get numShared() {
    return this.owners.reduce((count, owners) => count + (owners.length > 1), 0);
  }

  #leave(block, name) {
    const owners = this.owners[block];
    const place = owners.indexOf(name);
    if (place < 0) return;
    owners.splice(place, 1);
    if (!owners.length) this.used -= 1;
  }
}
