// The button that makes all GPUs of this machine take part, beside the remark that leaves some out.

import { element } from '../elements.mjs'
import { t } from '../text.mjs'
import { changeSettings, readSettings } from './server.mjs'

const LEFT_OUT = 'left_out'

/** Returns how many GPUs a remark's button would use; 0 if it has none. */
export const countOffered = ({ key, values }) => (key === LEFT_OUT && values.present) || 0

/** Makes the button for so many GPUs. */
export function makeUseAllButton(count) {
  const attributes = { type: 'button', class: 'paralleldit-use', 'data-testid': 'paralleldit-use-all' }
  const words = count === 2 ? t('plan.use_both') : t('plan.use_all', { count })
  const button = element('button', { ...attributes, title: t('plan.use_all_help') }, words)
  button.addEventListener('click', useAll)
  return button
}

async function useAll() {
  const known = await readSettings()
  if (known) await changeSettings({ gpus: known.cards.map(({ index }) => index) })
}
