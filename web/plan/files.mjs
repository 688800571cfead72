// Pure: says which model files are missing, and finds where a template says that they can be had.

import { getFileName } from '../panel/format.mjs'

/** Says which files are missing, in the order in which they run; null if none is. answer: the server's. say: `t`. */
export function describeMissing({ missing = [] }, say) {
  if (!missing.length) return null
  const folder = [...new Set(missing.map((each) => each.folder))].join(', ')
  return say('plan.missing', { folder, files: missing.map(({ model }) => getFileName(model)).join(', ') })
}

/** Returns the address of a file by its name, as the nodes of these graphs have it from a template; null if unknown. */
export function findAddress(graphs, model) {
  const known = graphs.flatMap(({ nodes }) => nodes).flatMap(({ properties }) => properties?.models ?? [])
  const address = known.find(({ name }) => name === getFileName(model))?.url
  return typeof address === 'string' && address.startsWith('https://') ? address : null
}
