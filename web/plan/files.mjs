// Pure: says which model files are missing, and finds where a template says that they can be had.

import { getFileName } from '../panel/format.mjs'

export const FILES = '{files}' // where the names stand in a sentence that has none yet

/**
 * Says which files are missing, in the order in which they run; null if none is. answer: the server's. say: `t`. files:
 * their names; by default in words.
 */
export function describeMissing(
  { missing = [] },
  say,
  files = missing.map(({ model }) => getFileName(model)).join(', ')
) {
  if (!missing.length) return null
  const folder = [...new Set(missing.map((each) => each.folder))].join(', ')
  return say('plan.missing', { folder, files })
}

/** Returns the address of a file by its name, as the nodes of these graphs have it from a template; null if unknown. */
export function findAddress(graphs, model) {
  const known = graphs.flatMap(({ nodes }) => nodes).flatMap(({ properties }) => properties?.models ?? [])
  const address = known.find(({ name }) => name === getFileName(model))?.url
  return typeof address === 'string' && address.startsWith('https://') ? address : null
}
